from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.pipeline.step import Spec
from gpupipe.steps.letterbox import Letterbox
from helpers.pipeline_texts import mistakes
from helpers.reference import differences, load

SIZES = [(375, 500), (427, 640), (100, 90), (1, 700), (33, 47), (640, 480), (11, 10)]
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"scaleup": False},
    {"center": False},
    {"scaleup": False, "center": False},
]


def ultralytics(
    shape: tuple[int, int], new_shape: tuple[int, int], scaleup: bool = True, center: bool = True
) -> tuple[tuple[int, int], tuple[int, int]]:
    """LetterBox.__call__ of ultralytics/data/augment.py with auto and scaleFill false.

    Returns:
        [width, height] of the resized image, and [top, left] of the border.
    """
    r = min(new_shape[0] / shape[0], new_shape[1] / shape[1])
    if not scaleup:
        r = min(r, 1.0)
    new_unpad = round(shape[1] * r), round(shape[0] * r)
    dw: float
    dh: float
    dw, dh = new_shape[1] - new_unpad[0], new_shape[0] - new_unpad[1]
    if center:
        dw /= 2
        dh /= 2
    top = round(dh - 0.1) if center else 0
    left = round(dw - 0.1) if center else 0
    return new_unpad, (top, left)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("target", [(640, 640), (320, 200), (21, 21)])
def test_shape_and_border_are_those_of_ultralytics(
    target: tuple[int, int], parameters: dict[str, Any]
) -> None:
    step = Letterbox(size=target, **parameters)
    sizes = np.array(SIZES, np.float64)
    shapes = step.shape(sizes)
    for size, shape, border in zip(SIZES, shapes, step.border(shapes), strict=True):
        expected, start = ultralytics(size, target, **parameters)
        assert shape.tolist() == [max(expected[1], 1), max(expected[0], 1)]
        if min(expected) > 0:
            assert border.tolist() == list(start)


def test_the_reference_is_a_resize_and_a_pad() -> None:
    image = torch.arange(3 * 33 * 47).reshape(3, 33, 47).to(torch.uint8)
    made = Letterbox(size=(64, 64), fill=(1.0, 2.0, 3.0)).torch(image, {})
    resized = F.resize(image, [45, 64], antialias=False)
    assert torch.equal(made, F.pad(resized, [0, 9, 0, 10], fill=[1, 2, 3]))


@pytest.mark.parametrize(
    ("parameters", "most"),
    [
        ({"size": [300, 400]}, 0.35),
        ({"size": 128, "antialias": True, "interpolation": "bicubic"}, 0.35),
        ({"size": 500, "scaleup": False, "interpolation": "nearest", "center": False}, 0.35),
    ],
    ids=str,
)
def test_pixels_are_torchvisions(
    small_gallery: Path, parameters: dict[str, Any], most: float
) -> None:
    found = differences(small_gallery, {"letterbox": parameters})
    assert max(d.mean for d in found) < most


def test_images_of_any_size_make_a_batch(small_gallery: Path) -> None:
    with load(small_gallery, {"letterbox": {"size": [96, 160]}}, batch_size=4) as loader:
        assert next(iter(loader))["image"].shape == (4, 3, 96, 160)
    assert Letterbox(size=(5, 6)).infer_spec(Spec.of_image(3)).size == (5, 6)


def test_a_mask_has_the_nearest_pixels_and_class_0_outside() -> None:
    step = Letterbox(size=(4, 4)).adapt_to_mask()
    made = step.torch(torch.full((1, 1, 2), 9, dtype=torch.uint8), {})
    assert made[0].tolist() == [[0] * 4, [9] * 4, [9] * 4, [0] * 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{size: 64, fill: 300}",
            "2:3: letterbox cannot stand here: fill is 300, but uint8 holds 0 to 255: write a "
            "number between them",
        ),
        (
            "{size: 64, interpolation: bicubic}",
            "2:14: letterbox: bicubic without antialias differs between engines: set antialias: "
            "true, or take bilinear",
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert mistakes("decode", f"letterbox: {text}") == [message]
