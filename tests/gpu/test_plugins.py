"""Steps of other packages on a GPU: a result that is not what the spec says is noticed there
too.
"""

from pathlib import Path

import pytest

from helpers.odd_steps import failure, installer, load

pytestmark = pytest.mark.gpu
CAST = """    def lower(self, image, p):
        from nvidia.dali import fn, types
        image.apply('odd', lambda pixels: fn.cast(pixels, dtype=types.FLOAT))"""
GPU = {"engine": "dali", "device": "gpu"}


def test_a_step_that_is_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faces: Path
) -> None:
    with load(faces, installer(tmp_path, monkeypatch)(), **GPU) as loader:
        assert sum(len(b["label"]) for b in loader) == 60


def test_a_wrong_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faces: Path) -> None:
    floats = {"to_dtype": {"dtype": "float32", "scale": True}}
    said = failure(faces, installer(tmp_path, monkeypatch)(lower=CAST), floats, **GPU)
    assert "its lower() made (250, 250, 3) float32, but its spec says (?, ?, 3) uint8" in str(said)
