"""Images on which kernels with OpenCV run, and how far the results may be from torchvision's."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.program import Rules
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec

SIZES = [(64, 80), (13, 200), (12, 12)]


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
    from gpupipe.engines.cpu import opencv_kernels

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
