"""Real photographs, cut to sizes that are awkward: odd, tall, wide, small."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

SIZES = [
    (333, 500),
    (501, 375),
    (257, 255),
    (225, 641),
    (640, 231),
    (300, 300),
    (448, 447),
    (640, 480),
    (231, 289),
    (512, 335),
]


@pytest.fixture(scope="session")
def gallery(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten photographs as PNG (so that decoding is out of question), windows of their middle at half
    resolution.
    """
    return cut_windows(photos, tmp_path_factory.mktemp("gallery"), SIZES)


@pytest.fixture(scope="session")
def small_gallery(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows as those of `gallery`, at a quarter of the area: for steps of many operations, of
    which every image draws a few.
    """
    sizes = [(width // 2, height // 2) for width, height in SIZES]
    return cut_windows(photos, tmp_path_factory.mktemp("small-gallery"), sizes)


def cut_windows(photos: Path, root: Path, sizes: Sequence[tuple[int, int]]) -> Path:
    files = sorted(photos.glob("*/*.jpg"))[:: len(list(photos.glob("*/*.jpg"))) // len(sizes)]
    for n, (file, (width, height)) in enumerate(zip(files, sizes, strict=False)):
        image = Image.open(file).convert("RGB")
        scale = max(width / image.width, height / image.height, 0.5)
        image = image.resize(
            (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        )
        left, top = (image.width - width) // 2, (image.height - height) // 2
        folder = root / f"class_{n % 3}"
        folder.mkdir(exist_ok=True)
        image.crop((left, top, left + width, top + height)).save(
            folder / f"{n:02d}_{width}x{height}.png"
        )
    return root
