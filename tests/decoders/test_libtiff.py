import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.decoders import libtiff
from helpers.image_files import encoded


@pytest.mark.parametrize("engine", ["cpu", "dataloader", "dali"])
def test_a_damaged_tiff_is_an_error_with_its_path_and_no_line_on_stderr(
    tmp_path: Path, engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8))
    data = bytearray(encoded(noise, "TIFF", compression="tiff_lzw"))
    for at in range(300, 2000, 37):
        data[at] ^= 0x5A
    (tmp_path / "r/a").mkdir(parents=True)
    (tmp_path / "r/a/0.tif").write_bytes(data)
    config = {
        "data": {"source": "folder", "root": str(tmp_path / "r")},
        "pipeline": ["decode"],
        "loader": {"engine": engine, "device": "cpu", "workers": 0, "batch_size": 1},
    }
    with gpupipe.load(config) as loader, pytest.raises(gpupipe.SampleError, match=r"a/0\.tif"):
        list(loader)
    if libtiff.silence_errors():  # a libtiff of the system is left alone
        assert capfd.readouterr().err == ""


def test_stderr_itself_is_untouched(capfd: pytest.CaptureFixture[str]) -> None:
    libtiff.silence_errors()
    os.write(2, b"a line\n")
    assert capfd.readouterr().err == "a line\n"
