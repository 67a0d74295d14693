"""Images so small that everything but the loading of data costs nothing."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image


@pytest.fixture(scope="session")
def dots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 images of 3x3 pixels, in 4 classes."""
    root = tmp_path_factory.mktemp("dots")
    for n in range(37):
        (root / f"{n % 4}").mkdir(exist_ok=True)
        Image.new("RGB", (3, 3), (n, 2 * n, 3 * n)).save(root / f"{n % 4}" / f"{n:02}.png")
    return root


@pytest.fixture(scope="session")
def config(dots: Path) -> dict[str, Any]:
    loader = {"engine": "dataloader", "workers": 0, "ids": True, "batch_size": 5}
    return {
        "data": {"source": "folder", "root": str(dots)},
        "pipeline": ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}],
        "loader": loader,
    }
