"""Samples as they are read: plain JPEGs stay bytes, and other files are opened."""

from pathlib import Path

import numpy as np
import pytest

from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.cpu.sample_reader import SampleReader
from helpers.jpeg_kinds import encode, several_scans
from helpers.loaders import loading

pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
load = loading(engine="cpu", threads=1, batch_size=8, shuffle=False)


def test_plain_jpegs_stay_bytes_and_all_others_are_opened(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    plain, scans = encode((40, 50), "420"), next(several_scans((30, 20)))[1]
    for n, content in enumerate([plain, scans, b"no image", plain]):
        (tmp_path / "one" / f"{n}.jpg").write_bytes(content)
    errors: dict[int, str] = {}
    with load(tmp_path, ["decode", {"resize": {"size": 20}}]) as loader:
        assert isinstance(loader.engine, CpuEngine)
        starter = loader.engine._starter
        reader = SampleReader(starter.phases[0], starter.decoders, None, False, {})
        fields = reader.begin(np.arange(4))
        reader.read(fields, range(4), np.arange(4), lambda n, error: errors.update({n: str(error)}))
        image = fields["image"]
        assert list(errors) == [2]
        assert "not an image in a known format" in errors[2]
        assert image.sizes.tolist() == [[40, 50], [30, 20], [0, 0], [40, 50]]
        assert [content is None for content in image.contents] == [True, False, True, True]
        assert image.find_orientations((0, 1, 3)) == [1, 1, 1]
        first, second = image.take(0), image.take(1)
        assert isinstance(first, np.ndarray)
        assert first.tobytes() == plain
        assert image.take(0) is None, "its memory can be freed"
        last = image.select([0, 1, 3]).take(2)
        assert isinstance(last, np.ndarray)
        assert last.tobytes() == plain
        assert second is not None
        opened = reader.open("image", first)
        assert reader.open("image", second) is second, "it is open"
    assert opened.size == (40, 50)
    assert opened.header.is_plain
