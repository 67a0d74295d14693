"""The shipped recipes on engine cpu: no function of Python is called for each image."""

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.runtime.installation import find_extension

RECIPES = ["imagenet_eval", "imagenet_train", "torchvision_resnet50_v2", "cifar10"]
RECIPES += ["timm_a1", "timm_a2", "timm_a3", "simclr", "byol", "dino_v2", "autoaugment"]
IMAGES, BATCHES = 240, 4


def count_calls(root: Path, recipe: str, batch_size: int) -> Counter[tuple[str, str]]:
    """How often each function is called in an epoch, by file and name, or calls one of C."""
    is_counting, calls = threading.Event(), Counter[tuple[str, str]]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and is_counting.is_set():
            calls[frame.f_code.co_filename, frame.f_code.co_name] += 1

    data = {"source": "folder", "root": str(root)}
    settings = {"engine": "cpu", "device": "cpu", "threads": 1, "repeats": 1, "seed": 3}
    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with gpupipe.load(recipe, data=data, batch_size=batch_size, **settings) as loader:
            list(loader)
            is_counting.set()
            assert sum(1 for _ in loader) == BATCHES
            is_counting.clear()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return calls


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of JPEGs of one class, the second with twice as many as the first."""
    folders = []
    for count in (IMAGES, 2 * IMAGES):
        folder = tmp_path_factory.mktemp("jpegs")
        (folder / "one").mkdir()
        for n in range(count):
            shades = np.random.default_rng(n).integers(0, 255, (6, 8, 3), np.uint8)
            image = Image.fromarray(shades).resize((96 + n % 3, 72), Image.Resampling.BICUBIC)
            image.save(folder / "one" / f"{n}.jpg")
        folders.append(folder)
    return folders


@pytest.mark.skipif(find_extension("_jpeg") is None, reason="the extensions are not built")
@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_is_called_for_each_image(roots: list[Path], recipe: str) -> None:
    """Twice as many images in as many batches. The next epoch is drawn in one epoch or the other,
    so what counts is what is called for each image every time.
    """
    suspects = None
    for _ in range(5):
        few, many = (
            count_calls(root, recipe, images // BATCHES)
            for root, images in zip(roots, (IMAGES, 2 * IMAGES), strict=True)
        )
        found = {name for name in many if many[name] - few[name] > 0.8 * IMAGES}
        suspects = found if suspects is None else suspects & found
        if not suspects:
            return
    pytest.fail(f"called for each image: {suspects}")
