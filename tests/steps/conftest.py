"""Real photographs, cut to sizes that are awkward: odd, tall, wide, small."""

from __future__ import annotations

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
    root = tmp_path_factory.mktemp("gallery")
    files = sorted(photos.glob("*/*.jpg"))[:: len(list(photos.glob("*/*.jpg"))) // len(SIZES)]
    for n, (file, (width, height)) in enumerate(zip(files, SIZES, strict=False)):
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
