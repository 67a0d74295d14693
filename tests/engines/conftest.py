"""Folders of images some of which are broken."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from helpers.corrupt_images import AUGMENT, SIDE, SLOTS, epoch, ids, load, sample
from helpers.small_images import copy_some, shrink_all


@pytest.fixture(scope="session")
def few_photos(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quarter of the real photographs."""
    return copy_some(photos, tmp_path_factory.mktemp("few-photos") / "photos", 4)


@pytest.fixture(scope="session")
def small_faces(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 60 faces, of 64x64 pixels."""
    return shrink_all(faces, tmp_path_factory.mktemp("small-faces") / "faces", 64)


@pytest.fixture(scope="module")
def pictures(faces: Path) -> list[Image.Image]:
    return [
        Image.open(p).convert("RGB").crop((70, 70, 70 + SIDE, 70 + SIDE))
        for p in sorted(faces.glob("*/*.jpg"))
    ]


@pytest.fixture(scope="module")
def healthy(pictures: list[Image.Image], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same paths as `sick`, with nothing wrong: so the ids, and with them the draws, are the
    same.
    """
    root = tmp_path_factory.mktemp("healthy")
    for n in range(len(SLOTS)):
        path = sample(root, n)
        path.parent.mkdir(exist_ok=True)
        pictures[n % len(pictures)].save(path, quality=85)
    return root


@pytest.fixture
def sick(healthy: Path, pictures: list[Image.Image], tmp_path: Path) -> Path:
    """`healthy` with every kind of bad file where SLOTS says x.

    The index is built by those who load it, so the files change `after`.
    """
    return shutil.copytree(healthy, tmp_path / "sick")


@pytest.fixture(scope="module")
def expected(healthy: Path) -> list[tuple[list[int], dict[int, torch.Tensor]]]:
    """Two epochs without an error, in batches of one: the order of the ids, and each image by its
    id.
    """
    with load(healthy, AUGMENT, batch_size=1, threads=1) as loader:
        epochs = [epoch(loader) for _ in range(2)]
    return [(ids(batches), {int(b["id"]): b["image"][0] for b in batches}) for batches in epochs]


@pytest.fixture
def few(pictures: list[Image.Image], tmp_path: Path) -> Path:
    """Six good images."""
    for n in range(6):
        sample(tmp_path, n).parent.mkdir(exist_ok=True)
        pictures[n].save(sample(tmp_path, n), quality=85)
    return tmp_path


@pytest.fixture
def unequal(few: Path, pictures: list[Image.Image]) -> Path:
    pictures[4].crop((0, 0, 50, 70)).save(sample(few, 4), quality=85)
    return few
