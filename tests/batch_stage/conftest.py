"""Little images to mix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

COUNT = 23


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images of noise, 12x10, in three classes."""
    root = tmp_path_factory.mktemp("noise") / "noise"
    rng = np.random.default_rng(7)
    for n in range(COUNT):
        (root / f"c{n % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), np.uint8)).save(
            root / f"c{n % 3}" / f"{n:02}.png"
        )
    return root


@pytest.fixture
def config(noise: Path) -> dict[str, Any]:
    """Floats of these images, mixed in one of two ways."""
    return {
        "data": {"source": "folder", "root": str(noise)},
        "pipeline": [
            "decode",
            "random_horizontal_flip",
            {"to_dtype": {"dtype": "float32", "scale": True}},
        ],
        "batch": [
            {"one_hot": {"label_smoothing": 0.1}},
            {"random_choice": {"transforms": [{"mixup": {"alpha": 0.4}}, "cutmix"]}},
        ],
        "loader": {"device": "cpu", "batch_size": 4, "seed": 5, "ids": True},
    }
