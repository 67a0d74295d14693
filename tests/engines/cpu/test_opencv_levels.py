"""Changes of levels with OpenCV: torchvision's pixels, one by one and as one lookup."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from gpupipe.augment.color_ops import COLOR_OPS, ColorFunction
from gpupipe.engines.cpu.ops import ColorOp
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.program import Rules
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
from helpers.opencv_pictures import (
    SIZES,
    apply,
    assert_close,
    dark,
    of_gray_levels,
    of_one_level,
    of_two_levels,
    picture,
)

pytest.importorskip("cv2", reason="OpenCV is not installed")

from gpupipe.engines.cpu import opencv_levels

Make = Callable[[tuple[int, int], int], NDArray[np.uint8]]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "kernel", "values"),
    [
        ("invert", "numpy.invert", [()]),
        ("posterize", "numpy.bitwise_and", [(bits,) for bits in range(9)]),
        (
            "solarize",
            "numpy.bitwise_xor",
            [(0.0,), (128.0,), (127.5,), (136.00000000000003,), (255.0,), (-1.0,)],
        ),
    ],
)
def test_bits_are_torchvisions(channels: int, name: str, kernel: str, values: Any) -> None:
    for size, each in product([*SIZES, (1, 1)], values):
        image = picture(size, channels)
        before = image.copy()
        made, op = apply(image, name, *(np.array([value]) for value in each))
        assert op == kernel
        expected = getattr(F, name)(torch.from_numpy(image).permute(2, 0, 1), *each)
        assert torch.equal(made, expected), each
        assert np.array_equal(image, before), "the input is left alone"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("make", [picture, dark, of_one_level, of_two_levels])
@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_a_spread_of_levels_is_torchvisions(channels: int, make: Any, name: str) -> None:
    for size in [*SIZES, (1, 1), (2, 9), (17, 15), (16, 16)]:
        image = make(size, channels)
        made, op = apply(image, name)
        assert op == "cv2.LUT"
        expected = getattr(F, name)(torch.from_numpy(image).permute(2, 0, 1))
        assert torch.equal(made, expected), size


_LEVEL_CHANGES: list[list[tuple[str, Any]]] = [
    [("adjust_brightness", 1.3), ("adjust_contrast", 0.6)],
    [("adjust_contrast", 1.7), ("adjust_brightness", 0.8), ("posterize", 3)],
    [("solarize", 90), ("invert", None), ("autocontrast", None)],
    [("equalize", None), ("adjust_contrast", 0.5), ("equalize", None)],
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("changes", _LEVEL_CHANGES)
def test_levels_after_several_changes_are_those_of_one_after_the_other(
    changes: list[tuple[str, Any]], channels: int
) -> None:
    image = picture((64, 80), channels)
    tracer, after = Tracer([image.shape[:2]], Rules([]), Spec.of_image(channels)), image
    for name, value in changes:
        values = [] if value is None else [np.array([value])]
        tracer.color(name, *values)
        after = apply(after, name, *values)[0].permute(1, 2, 0).contiguous().numpy()
    series = [op for op in tracer.ops if isinstance(op, ColorOp)]
    assert all(opencv_levels.LEVELS.accepts(op) for op in series)
    levels = opencv_levels.find_levels(series, image, 0)
    assert np.array_equal(look_up(image, levels), after)
    own = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    levels = opencv_levels.find_levels(series, own, 0, may_change=True)
    assert np.array_equal(look_up(own, levels), after)


@pytest.mark.parametrize(
    "changes",
    [
        [("adjust_contrast", 0.6)],
        [("adjust_brightness", 1.3), ("adjust_contrast", 0.6)],
        [("invert", None), ("adjust_contrast", 1.4), ("adjust_brightness", 0.8)],
        [("posterize", 3), ("adjust_gamma", 0.7)],
    ],
)
def test_a_packed_image_has_the_levels_of_its_planes(changes: list[tuple[str, Any]]) -> None:
    image = picture((260, 270), 3)
    before, series = image.copy(), list_changes(image, changes)
    levels = opencv_levels.find_levels(series, image, 0)
    packed = opencv_levels.change_packed(series, image, 0)
    assert packed is not None
    assert np.array_equal(packed, look_up(image, levels))
    assert np.array_equal(image, before), "the input is left alone"


@pytest.mark.parametrize("size", [(260, 270), (14_000, 5)])
def test_the_mean_is_estimated_of_the_same_pixels_in_planes(size: tuple[int, int]) -> None:
    """Those have other fractions of luma than the rest."""
    image = np.full((*size, 3), (10, 20, 30), np.uint8)
    image[::7, ::7] = 3, 0, 0
    series = list_changes(image, [("adjust_contrast", 0.05)])
    levels = opencv_levels.find_levels(series, image, 0)
    packed = opencv_levels.change_packed(series, image, 0)
    assert packed is not None
    assert np.array_equal(packed, look_up(image, levels))


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        ((260, 270), []),
        ((260, 270), [("autocontrast", None)]),
        ((260, 270), [("adjust_contrast", 0.6), ("posterize", 3)]),
        ((20, 30), [("adjust_contrast", 0.6)]),
    ],
)
def test_some_changes_need_the_planes(
    size: tuple[int, int], changes: list[tuple[str, Any]]
) -> None:
    image = picture(size, 3)
    assert opencv_levels.change_packed(list_changes(image, changes), image, 0) is None


def list_changes(image: NDArray[np.uint8], changes: list[tuple[str, Any]]) -> list[ColorOp]:
    tracer = Tracer([image.shape[:2]], Rules([]), Spec.of_image(3))
    for name, value in changes:
        tracer.color(name, *([] if value is None else [np.array([value])]))
    return [op for op in tracer.ops if isinstance(op, ColorOp)]


def look_up(image: NDArray[np.uint8], levels: Any) -> NDArray[np.uint8]:
    """An image, (H, W, C), through a table (256, 1) or (256, C)."""
    found: NDArray[np.uint8] = levels[image, np.arange(image.shape[2]) % levels.shape[1]]
    return found


def test_the_levels_of_a_switch_are_those_of_the_branch_of_a_sample() -> None:
    image = picture((20, 30), 3)
    tracer = Tracer(np.tile(image.shape[:2], (3, 1)), Rules([]), Spec.of_image(3))
    gamma = np.full(3, 0.7)
    tracer.switch(
        np.array([0, 1, 2]),
        [
            lambda _: None,
            lambda part: part.color("invert"),
            lambda p: p.color("adjust_gamma", gamma),
        ],
    )
    assert all(map(opencv_levels.LEVELS.accepts, tracer.ops))
    assert opencv_levels.find_levels(tracer.ops, image, 0) is None
    for row, (name, *values) in {1: ("invert",), 2: ("adjust_gamma", gamma[:1])}.items():
        levels = opencv_levels.find_levels(tracer.ops, image, row)
        assert levels is not None
        after = apply(image, str(name), *values)[0].permute(1, 2, 0).numpy()
        assert np.array_equal(levels[:, 0][image], after)


def test_a_function_without_a_value_is_the_same_for_each_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halve = ColorFunction(is_pointwise=True, formula=lambda pixels: pixels * 0.5)
    monkeypatch.setitem(COLOR_OPS, "halve", halve)
    tracer = Tracer([(4, 5)] * 2, Rules([]), Spec.of_image(3))
    tracer.color("halve")
    for row in (0, 1):
        levels = opencv_levels.find_levels(tracer.ops, picture((4, 5), 3), row)
        assert levels is not None
        assert levels[:, 0].tolist() == [level // 2 for level in range(256)]


@pytest.mark.parametrize("make", [picture, of_one_level, of_gray_levels])
@pytest.mark.parametrize("brightness", [None, 0.8, 1.2])
def test_a_last_contrast_of_large_images_is_within_a_level(
    make: Make, brightness: float | None
) -> None:
    image = make((300, 400), 3)
    before = as_tensor(image)
    if brightness is not None:
        before = F.adjust_brightness(before, brightness)
    for factor in (0.2, 0.63, 1.37):
        tracer = Tracer([(300, 400)], Rules([]), Spec.of_image(3))
        if brightness is not None:
            tracer.color("adjust_brightness", np.array([brightness]))
        tracer.color("adjust_contrast", np.array([factor]))
        levels = opencv_levels.find_levels(tracer.ops, image, 0)
        assert levels is not None
        made = as_tensor(levels[:, 0][image])
        assert_close(made, F.adjust_contrast(before, factor), factor, share=0.02)


def test_a_contrast_before_other_changes_has_the_exact_mean() -> None:
    """The pixels of an estimate have other fractions of luma: it is 0.7 levels off."""
    image = np.full((320, 400, 3), (10, 20, 30), np.uint8)
    image[::7, ::7] = 3, 0, 0
    tracer = Tracer([(320, 400)], Rules([]), Spec.of_image(3))
    tracer.color("adjust_contrast", np.array([0.2]))
    tracer.color("invert")
    levels = opencv_levels.find_levels(tracer.ops, image, 0)
    assert levels is not None
    expected = F.invert(F.adjust_contrast(as_tensor(image), 0.2))
    assert torch.equal(as_tensor(levels[:, 0][image]), expected)
