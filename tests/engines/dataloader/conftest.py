"""Fixtures of the tests of the DataLoader engine."""

from pathlib import Path

import pytest
import torch

from helpers.dataloader_engine import load
from helpers.small_images import shrink_all


@pytest.fixture(scope="session")
def faces(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 60 faces, of 176x176 pixels."""
    return shrink_all(faces, tmp_path_factory.mktemp("faces-of-176") / "faces", 176)


@pytest.fixture(scope="module")
def epochs(faces: Path) -> list[list[dict[str, torch.Tensor]]]:
    """Two epochs, made in this process."""
    with load(faces, workers=0) as loader:
        return [list(loader) for _ in range(2)]


@pytest.fixture
def twelve_files(faces: Path, tmp_path: Path) -> list[Path]:
    """Twelve good images."""
    files = [tmp_path / "a" / f"{n:02}.jpg" for n in range(12)]
    files[0].parent.mkdir()
    for file, face in zip(files, sorted(faces.glob("*/*.jpg")), strict=False):
        file.write_bytes(face.read_bytes())
    return files
