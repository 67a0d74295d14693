"""Boxes, points and images of unequal size on a GPU: annotations to the bit, pixels nearly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.annotated_folder import RAGGED, assert_equal, by_sample, load
from helpers.either_device import DEVICE, TYPE
from helpers.small_images import shrink_all

pytestmark = pytest.mark.either_device

FLOATS: dict[str, Any] = {"to_dtype": {"dtype": "float32", "scale": True}}
STEPS: list[Any] = [
    "decode",
    {"random_zoom_out": {"side_range": [1.0, 2.0]}},
    {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "scale": [0.8, 1.2], "shear": 5}},
    "random_horizontal_flip",
    {"random_apply": {"transforms": [{"random_crop": {"size": 40, "pad_if_needed": True}}]}},
    {"resize": {"size": [32, 44]}},
    FLOATS,
]
UNEQUAL: list[Any] = ["decode", "random_iou_crop", "random_horizontal_flip", FLOATS]
LEVEL = 1 / 255


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("annotations-on-a-gpu") / "faces", 56)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PNGs of different sizes, which every decoder decodes alike."""
    folder = tmp_path_factory.mktemp("unequal-on-a-gpu") / "a"
    folder.mkdir()
    rng = np.random.default_rng(4)
    for n in range(13):
        high, wide = (30, 40) if n < 3 else rng.integers(20, 60, 2).tolist()
        pixels = rng.integers(0, 256, (high, wide, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{n:02}.png")
    return folder.parent


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "dali", "batch_size": 13, "hw_decoder_load": 0.0},
        {"engine": "dali", "batch_size": 7, "targets": "padded"},
        {"engine": "cpu", "batch_size": 60, "threads": 2},
        {"engine": "dataloader", "batch_size": 11, "workers": 2},
    ],
    ids=str,
)
def test_annotations_arrive_as_on_a_cpu(root: Path, options: dict[str, Any]) -> None:
    on_cpu = {k: v for k, v in options.items() if k in ("batch_size", "targets")}
    with load(root, STEPS, engine="cpu", **on_cpu) as loader:
        expected = by_sample(loader)
    with load(root, STEPS, device=DEVICE, **options) as loader:
        found = by_sample(loader)
    assert {t.device.type for sample in found.values() for t in sample.values()} == {TYPE}
    found = {n: {name: t.cpu() for name, t in sample.items()} for n, sample in found.items()}
    assert set(RAGGED) <= set(found[0])
    assert_equal(found, expected)
    differences = [(found[n]["image"] - expected[n]["image"]).abs().mean() for n in found]
    assert max(differences) < 2 * LEVEL


@pytest.mark.parametrize("shapes", ["list", "padded"])
@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_images_of_unequal_size_arrive_as_on_a_cpu(unequal: Path, engine: str, shapes: str) -> None:
    options = {"batch_size": 5, "shapes": shapes}
    with load(unequal, UNEQUAL, engine="cpu", **options) as loader:
        expected = by_sample(loader)
    with load(unequal, UNEQUAL, engine=engine, device=DEVICE, workers=0, **options) as loader:
        found = by_sample(loader)
        loader.sampler.set_epoch(0)
        again = by_sample(loader)
    assert {t.device.type for sample in found.values() for t in sample.values()} == {TYPE}
    found = {n: {name: t.cpu() for name, t in sample.items()} for n, sample in found.items()}
    assert_equal(found, expected)
    for n, sample in found.items():
        assert sample["image"].shape == expected[n]["image"].shape
        assert (sample["image"] - expected[n]["image"]).abs().max() <= 1.01 * LEVEL
        assert torch.equal(again[n]["image"].cpu(), sample["image"])
