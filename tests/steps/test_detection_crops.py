from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from gpupipe.pipeline.step import Spec
from gpupipe.steps.detection_crops import FixedSizeCrop, RandomSizeCrop
from helpers.arrays import both, exactly, numbers, saved
from helpers.distributions import MOST, chi_square, largest_gap
from helpers.pipeline_texts import mistakes
from helpers.reference import differences, emitted, load

SIZES = [(375, 500), (100, 90), (64, 300), (300, 64), (1, 1), (128, 96)]


@pytest.mark.parametrize(
    "case",
    [
        {"fixed_size_crop": {"size": [150, 400], "fill": [1, 2, 3]}},
        {"random_size_crop": {"min_size": 60, "max_size": 200}},
    ],
    ids=str,
)
def test_exact(small_gallery: Path, case: dict[str, Any]) -> None:
    assert max(d.most for d in differences(small_gallery, case)) == 0


def test_arrays_are_exact(tmp_path: Path) -> None:
    data = saved(tmp_path, numbers("int16", (5, 9, 12)), layout="HW")
    exactly(both(data, [{"fixed_size_crop": {"size": [7, 15], "fill": 3}}]))
    exactly(
        both(
            data,
            [{"random_size_crop": {"min_size": 4, "max_size": 9}}, {"center_crop": {"size": 8}}],
        )
    )


def reference_fixed_size_crop(image: Any, size: tuple[int, int], fill: list[int], r: float) -> Any:
    """FixedSizeCrop.forward of torchvision's references/detection/transforms.py, for a draw r."""
    _, height, width = F.get_dimensions(image)
    new_height, new_width = min(height, size[0]), min(width, size[1])
    if new_height != height or new_width != width:
        offset_height, offset_width = max(height - size[0], 0), max(width - size[1], 0)
        top, left = int(offset_height * r), int(offset_width * r)
        image = F.crop(image, top, left, new_height, new_width)
    padding = [0, 0, max(size[1] - new_width, 0), max(size[0] - new_height, 0)]
    return F.pad(image, padding, fill=fill)


@pytest.mark.parametrize("size", SIZES)
def test_fixed_size_crop_is_torchvisions(size: tuple[int, int]) -> None:
    step = FixedSizeCrop(size=(128, 96), fill=(7.0, 8.0, 9.0))
    image = torch.arange(3 * size[0] * size[1]).reshape(3, *size).to(torch.uint8)
    drawn = step.sample(np.random.default_rng(0).random((20, 1)))["position"]
    for position in drawn:
        made = step.torch(image, {"position": position})
        expected = reference_fixed_size_crop(image, (128, 96), [7, 8, 9], float(position[0]))
        assert torch.equal(made, expected)


def test_fixed_size_crop_is_one_operator(small_gallery: Path) -> None:
    with load(small_gallery, {"fixed_size_crop": {"size": 100}}) as loader:
        assert emitted(loader) == ["decoders.image", "slice", "transpose"]


def test_the_window_of_random_size_crop_is_distributed_as_detrs() -> None:
    """random.randint(min_size, min(side, max_size)) for each side, then RandomCrop.get_params."""
    step, size = RandomSizeCrop(min_size=10, max_size=14), np.array([13.0, 40.0])
    p = step.sample(np.random.default_rng(0).random((30_000, 4)))
    anchor, shape = step.window(p, size)
    for axis, high in ((0, 13), (1, 14)):
        values, counts = np.unique(shape[:, axis], return_counts=True)
        assert values.tolist() == list(range(10, high + 1))
        assert chi_square(counts) < MOST
    is_ten = (shape == 10).all(-1)
    torch.manual_seed(0)
    crop, image = v2.RandomCrop(10), torch.zeros(3, 13, 40)
    theirs = [crop.make_params([image]) for _ in range(2000)]
    for axis, name in enumerate(("top", "left")):
        assert largest_gap(anchor[is_ten, axis], [drawn[name] for drawn in theirs]) < 2.2
    assert (anchor + shape <= size).all()


def test_random_size_crop_keeps_a_short_side_whole() -> None:
    step = RandomSizeCrop(min_size=384, max_size=600)
    p = step.sample(np.random.default_rng(0).random((100, 4)))
    anchor, shape = step.window(p, np.array([300.0, 384.0]))
    assert (shape == [300, 384]).all()
    assert (anchor == 0).all()


def test_what_is_known_of_the_size() -> None:
    step = RandomSizeCrop(min_size=20, max_size=30)
    made = step.infer_spec(Spec.of_image(3, 10, 50))
    assert (made.size, made.at_least) == (None, (10, 20))
    assert FixedSizeCrop(size=(5, 6)).infer_spec(Spec.of_image(3)).size == (5, 6)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "random_size_crop: {min_size: 30, max_size: 20}",
            "2:21: random_size_crop: max_size is 20, but should be at least min_size, 30",
        ),
        (
            "fixed_size_crop: {size: 30, fill: 300}",
            "2:3: fixed_size_crop cannot stand here: fill is 300, but uint8 holds 0 to 255: write "
            "a number between them",
        ),
    ],
)
def test_mistakes(step: str, message: str) -> None:
    assert mistakes("decode", step) == [message]
