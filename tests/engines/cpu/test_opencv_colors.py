"""The colours with OpenCV: torchvision's pixels, but for a level of a few."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.ops import ColorOp
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.program import Rules
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import SampleIncompatibleError, Spec

pytest.importorskip("cv2", reason="OpenCV is not installed")

from gpupipe.engines.cpu import opencv_colors, opencv_kernels

SIZES = [(64, 80), (13, 200), (12, 12)]
Make = Callable[[tuple[int, int], int], NDArray[np.uint8]]


def picture(size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Shades with noise, and all hues."""
    rng = np.random.default_rng(sum(size))
    rows, columns = np.mgrid[: size[0], : size[1]]
    shades = [rows * 255 / size[0], columns * 255 / size[1], (rows + columns) % 256]
    noisy = np.stack(shades[:channels], -1) + rng.normal(0, 20, (*size, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def of_one_level(size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    return np.full((*size, channels), 7, np.uint8)


def of_two_levels(size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    image = np.full((*size, channels), 255, np.uint8)
    image[: size[0] // 2] = 0
    return image


def dark(size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    return picture(size, channels) // 3 + 20


def of_gray_levels(size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    return np.repeat(picture(size, 1), channels, 2)


def apply(image: NDArray[np.uint8], op: str, *values: Any) -> tuple[torch.Tensor, str]:
    """The image (C, H, W) after an operation, and the name of the kernel that did it."""
    spec = Spec.of_image(image.shape[2])
    rules = Rules([*opencv_kernels.create_rules(), *kernels.RULES])  # without the extension
    tracer = Tracer([image.shape[:2]], rules, spec)
    tracer.color(op, *values)
    program = tracer.program()
    return as_tensor(program.run(image, 0)), program.groups[0][0].name


def assert_close(
    made: torch.Tensor, expected: torch.Tensor, *case: Any, share: float = 2e-3
) -> None:
    """At most `share` of the values are a level apart, and none is further."""
    assert made.dtype == torch.uint8
    apart = (made.int() - expected.int()).abs()
    assert apart.max() <= 1, case
    assert (apart > 0).double().mean() <= share, case


@pytest.mark.parametrize("channels", [1, 3])
def test_a_blur_is_torchvisions(channels: int) -> None:
    sigmas = [[0.1, 0.1], [0.5, 3.0], [2.0, 2.0]]
    for size, kernel_size, sigma in product(SIZES, [[23, 23], [5, 9], [1, 3]], sigmas):
        image = picture(size, channels)
        made, op = apply(image, "gaussian_blur", np.array([kernel_size]), np.array([sigma]))
        assert op == "cv2.sepFilter2D"
        expected = F.gaussian_blur(torch.from_numpy(image).permute(2, 0, 1), kernel_size, sigma)
        assert_close(made, expected, size, kernel_size, sigma)


def test_a_blur_of_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(SampleIncompatibleError, match="gaussian_blur needs at least 12x3 pixels"):
        apply(picture((11, 20), 3), "gaussian_blur", np.array([[5, 23]]), np.ones((1, 2)))


def test_a_hue_is_torchvisions() -> None:
    for size, factor in product(SIZES, [-0.5, -0.2, 0.0, 0.1, 0.37, 0.5]):
        image = picture(size, 3)
        image[:2] = np.array([[[0, 0, 0]], [[77, 77, 77]]])
        image[2:4] = np.array([[[255, 255, 255]], [[255, 0, 0]]])
        made, op = apply(image, "adjust_hue", np.array([factor]))
        assert op == "cv2.cvtColor"
        expected = F.adjust_hue(torch.from_numpy(image).permute(2, 0, 1), factor)
        assert_close(made, expected, size, factor)


def test_the_hue_of_gray_images_is_left_to_torchvision() -> None:
    image = picture((20, 20), 1)
    made, op = apply(image, "adjust_hue", np.array([0.2]))
    assert op == "torchvision.color"
    assert np.array_equal(made[0].numpy(), image[:, :, 0])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("adjust_brightness", "cv2.addWeighted"),
        ("adjust_contrast", "cv2.addWeighted"),
        ("adjust_saturation", "cv2.addWeighted"),
        ("adjust_sharpness", "cv2.filter2D"),
    ],
)
def test_a_blend_is_torchvisions(channels: int, name: str, kernel: str) -> None:
    factors = [0.0, 0.01, 0.37, 0.9, 1.0, 1.03, 1.7, 2.0]
    for size, factor in product([*SIZES, (1, 1), (2, 9), (3, 3)], factors):
        image = picture(size, channels)
        image[: size[0] // 4] = np.array([[200, 200, 200]])[:, :channels]
        image[size[0] // 4 : size[0] // 2] = np.array([[255, 0, 91]])[:, :channels]
        before = image.copy()
        made, op = apply(image, name, np.array([factor]))
        assert op == kernel
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        # A sharpened whole number may round to either side.
        share = 0.02 if name == "adjust_sharpness" else 2e-3
        assert_close(made, getattr(F, name)(tensor, factor), size, factor, share=share)
        assert np.array_equal(image, before), "the input is left alone"


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


def test_channels_are_permuted() -> None:
    image = picture((13, 20), 3)
    for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        made, op = apply(image, "permute_channels", np.array([order]))
        assert op == "cv2.mixChannels"
        assert np.array_equal(made.permute(1, 2, 0).numpy(), image[..., order])


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
    assert all(opencv_colors.LEVELS.accepts(op) for op in series)
    levels = opencv_colors.find_levels(series, image, 0)
    assert levels is not None
    columns = np.arange(channels) if levels.shape[1] == channels else np.zeros(channels, int)
    assert np.array_equal(levels[image, columns], after)


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
    assert all(map(opencv_colors.LEVELS.accepts, tracer.ops))
    assert opencv_colors.find_levels(tracer.ops, image, 0) is None
    for row, (name, *values) in {1: ("invert",), 2: ("adjust_gamma", gamma[:1])}.items():
        levels = opencv_colors.find_levels(tracer.ops, image, row)
        assert levels is not None
        after = apply(image, str(name), *values)[0].permute(1, 2, 0).numpy()
        assert np.array_equal(levels[:, 0][image], after)


@pytest.mark.parametrize("make", [picture, of_one_level, of_gray_levels])
def test_a_last_contrast_of_large_images_is_within_a_level(make: Make) -> None:
    image, tracer = make((300, 400), 3), Tracer([(300, 400)], Rules([]), Spec.of_image(3))
    for factor in (0.0, 0.63, 1.37):
        tracer.color("adjust_contrast", np.array([factor]))
        levels = opencv_colors.find_levels(tracer.ops[-1:], image, 0)
        assert levels is not None
        made = as_tensor(levels[:, 0][image])
        assert_close(made, F.adjust_contrast(as_tensor(image), factor), factor, share=0.02)


def test_a_saturation_is_torchvisions_to_the_bit() -> None:
    """Of random factors, and of those for which many sums are near a whole number."""
    image = picture((64, 80), 3)
    image[:20, :, 0] = image[:20, :, 1]
    factors = [*np.random.default_rng(0).uniform(0, 2, 40), 0.3, 0.9, 1.0, 1.1, 1.7, 2.0]
    for factor in factors:
        made, _ = apply(image, "adjust_saturation", np.array([factor]))
        assert torch.equal(made, F.adjust_saturation(as_tensor(image), factor)), factor
