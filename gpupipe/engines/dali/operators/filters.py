"""torchvision's functions in which pixels depend on their neighbours; see color.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from gpupipe.engines.dali.operators.color import Operators, PixelFormat, limit, to_pixels

_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""PIL's filter SMOOTH, with which torchvision blends."""
_FAR = 1e6
"""Longer than any side, so that a region of this length covers it."""
_BORDER: dict[str, Any] = {
    "anchor": [0.0, 0.5, 1.0, 0.5, 0.5, 0.0, 0.5, 1.0],
    "shape": [2.0, _FAR, 2.0, _FAR, _FAR, 2.0, _FAR, 2.0],
    "axes": [0, 1],
    "normalized_anchor": True,
    "centered_anchor": True,
}
"""Arguments of `erase` for the first and last row and column: two pixels wide around each edge."""


def adjust_sharpness(image: PixelFormat, factor: NDArray[Any]) -> Operators:
    """Blend with a smoothed image; the border of one pixel keeps its values."""

    # The filter is fed, so that `switch` splits it: a constant would reach an empty branch whole,
    # where the operator then fails.
    def make(pixels: Any, rest: Any, filter: Any) -> Any:
        smooth = fn.filter(pixels, image.on_device(filter))
        change = smooth * np.float32(1.0) - pixels
        change = fn.erase(change, fill_value=0.0, **_BORDER)
        return to_pixels(pixels + change * image.on_device(rest), image)

    return Operators(make, (1.0 - limit(factor), np.tile(_SMOOTH, (len(factor), 1, 1))))


def gaussian_blur(image: PixelFormat, kernel_size: NDArray[Any], sigma: NDArray[Any]) -> Operators:
    """Blur; the image is mirrored at its border without repeating the last pixel.

    On a CPU, uint8 goes through two filters of one row and one column, with whole levels between
    them. That takes a 25th of the time of `fn.gaussian_blur`, for kernels of 23 pixels.
    """
    height_width, sigma = kernel_size[:, ::-1], sigma[:, ::-1]
    least = height_width // 2 + 1
    if image.device == "cpu" and image.dtype == "uint8":
        column, row = (_gaussian(height_width[:, n], sigma[:, n]) for n in (0, 1))
        return Operators(_filter_twice, (row[:, None, :], column[:, :, None]), least)
    dtype = types.UINT8 if image.dtype == "uint8" else types.FLOAT

    def make(pixels: Any, window_size: Any, sigma: Any) -> Any:
        return fn.gaussian_blur(pixels, window_size=window_size, sigma=sigma, dtype=dtype)

    return Operators(make, (height_width, sigma), least)


def _filter_twice(pixels: Any, row: Any, column: Any) -> Any:
    return fn.filter(fn.filter(pixels, row), column)


def _gaussian(length: NDArray[Any], sigma: NDArray[Any]) -> NDArray[np.float32]:
    """Return the kernel of each sample, (B, the longest), with zeros around it.

    The filter skips zeros. So the weights beyond 3.5 sigma are left out: together they are less
    than an eighth of a level.
    """
    half = np.minimum(length // 2, np.ceil(3.5 * sigma))[:, None]
    distance = np.abs(np.arange(length.max()) - length.max() // 2)
    weights = np.where(distance <= half, np.exp(-0.5 * (distance / sigma[:, None]) ** 2), 0.0)
    kernel: NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return kernel


def jpeg(image: PixelFormat, quality: NDArray[Any]) -> Operators:
    """Compress as JPEG, and decode again. On a GPU DALI does not use a codec, but simulates one."""

    def make(pixels: Any, quality: Any) -> Any:
        if image.channels == 3:
            return fn.jpeg_compression_distortion(pixels, quality=quality)
        colors = fn.cat(pixels, pixels, pixels, axis=2)
        return fn.jpeg_compression_distortion(colors, quality=quality)[:, :, 0:1]

    return Operators(make, (quality,))
