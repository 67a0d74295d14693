"""torchvision's colour functions that need statistics of the whole image; see color.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali import math as dali_math

from gpupipe.engines.dali.operators.color import (
    SHIFT,
    Operators,
    PixelFormat,
    limit,
    luma,
    round_to_levels,
    to_pixels,
)

_ALL_BITS = types.Constant(255, types.UINT8)


def adjust_contrast(image: PixelFormat, factor: NDArray[Any]) -> Operators:
    """Blend with the mean of the luma."""

    def make(pixels: Any, factor: Any) -> Any:
        mean = fn.reductions.mean(pixels if image.channels == 1 else luma(pixels, image))
        if image.device == "cpu" and image.dtype == "uint8":
            return fn.brightness_contrast(
                pixels,
                contrast=factor,
                contrast_center=mean,
                brightness_shift=SHIFT,
                dtype=types.UINT8,
            )
        factor = image.on_device(factor)
        return to_pixels((pixels - mean) * factor + mean, image)

    return Operators(make, (limit(factor),))


def autocontrast(image: PixelFormat) -> Operators:
    """Stretch each channel to the full range; a channel of one value is left alone."""
    most = np.float32(255.0 if image.dtype == "uint8" else 1.0)

    def make(pixels: Any) -> Any:
        low = fn.reductions.min(pixels, axes=(0, 1), keep_dims=True)
        high = fn.reductions.max(pixels, axes=(0, 1), keep_dims=True)
        low, high = (fn.cast(bound, dtype=types.FLOAT) for bound in (low, high))
        is_flat = high == low
        scale = (high > low) * most / (high - low + is_flat) + is_flat
        offset = (high > low) * low
        return to_pixels((pixels - offset) * scale, image)

    return Operators(make)


def equalize(image: PixelFormat) -> Operators:
    """Equalize the histogram of each channel, as PIL does.

    DALI's equalize is OpenCV's: on the inverted image it makes 255 * c / n, where c counts the
    smaller values, and n all but the largest. PIL divides by the whole number n // 255 instead,
    and leaves a channel alone for which that is 0.
    """

    def make(pixels: Any) -> Any:
        usual = fn.equalize(pixels ^ _ALL_BITS) ^ _ALL_BITS
        highest = fn.reductions.max(pixels, axes=(0, 1), keep_dims=True)
        smaller = fn.cast(pixels < highest, dtype=types.FLOAT)
        steps = fn.reductions.sum(smaller, axes=(0, 1), keep_dims=True) * np.float32(1 / 255)
        whole = dali_math.floor(steps + np.float32(2.0**-12))
        can_divide = whole > np.float32(0.0)
        factor = can_divide * steps / dali_math.max(whole, np.float32(1.0))
        kept = pixels * (fn.cast(whole == np.float32(0.0), dtype=types.FLOAT))
        return round_to_levels(usual * factor + kept)

    return Operators(make)
