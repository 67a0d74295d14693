"""Little images to serve."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from helpers.leftovers import nothing_left  # noqa: F401  # used by every test
from helpers.served import Batches

COUNT = 23


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images of noise, 12x10, in three classes."""
    root = tmp_path_factory.mktemp("noise") / "noise"
    rng = np.random.default_rng(7)
    for n in range(COUNT):
        (root / f"{n % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (10, 12, 3), np.uint8)).save(
            root / f"{n % 3}" / f"{n}.png"
        )
    return root


@pytest.fixture
def config(noise: Path) -> dict[str, Any]:
    loader = {
        "engine": "dataloader",
        "workers": 0,
        "device": "cpu",
        "batch_size": 3,
        "seed": 5,
        "ids": True,
    }
    return {
        "data": {"source": "folder", "root": str(noise)},
        "pipeline": ["decode", "random_horizontal_flip"],
        "loader": loader,
    }


@pytest.fixture
def whole(config: dict[str, Any]) -> list[Batches]:
    """Three epochs, as they are in process."""
    with gpupipe.load(config) as loader:
        return [list(loader) for _ in range(3)]
