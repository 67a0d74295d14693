"""Fixtures of the tests of the DataLoader engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.dataloader_engine import load


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
