"""A FIFO in the place of an image is a broken sample: no engine waits for it."""

import os
import shutil
from pathlib import Path

import pytest

import gpupipe
from helpers.loaders import load


@pytest.mark.parametrize("engine", ["cpu", "dataloader", "dali"])
def test_a_fifo_is_a_broken_sample(engine: str, faces: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for n, face in enumerate(sorted(faces.glob("*/*.jpg"))[:6]):
        shutil.copy(face, tmp_path / "a" / f"{n}.jpg")
    (tmp_path / "a" / "3.jpg").unlink()
    os.mkfifo(tmp_path / "a" / "3.jpg")
    options = {"engine": engine, "batch_size": 4, "threads": 1, "shuffle": False}
    with (
        load(tmp_path, **options) as loader,
        pytest.raises(gpupipe.SampleError, match=r"3\.jpg: not a regular file, but a pipe"),
    ):
        list(loader)
    with load(tmp_path, on_error="skip", max_bad=0.5, **options) as loader:
        assert [i for batch in loader for i in batch["id"].tolist()] == [0, 1, 2, 4, 5]
        assert list(loader.engine.quarantine.reasons) == [3]
