"""Kernels that mix the channels of a pixel or neighbouring pixels, with OpenCV, on uint8.

They have torchvision's arithmetic in fewer passes: they compute in float32, and truncate values
where torchvision does. The kernels of `opencv_levels` change each value by itself.
"""

from collections.abc import Callable, Collection

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import LUMA
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.pixels import Array, Pixels, as_packed, scratch, with_channels
from gpupipe.engines.cpu.program import Rule, single

RGB, FULL = 3, 255
_CIRCLE = 360  # degrees
TRUNCATE = 0.49995
"""What is subtracted before OpenCV rounds, so that fractions are dropped.

Fractions of the luma are multiples of 1 / 10,000.
"""
_LUMA = np.array([LUMA], np.float32)
_SHARES = LUMA[0] / (1 - LUMA[1] - LUMA[2]), LUMA[1] / (1 - LUMA[2]), LUMA[2]
"""LUMA as a running mean: sum = (1 - share) * sum + share * plane, from 0."""
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""The smoothing filter of adjust_sharpness, which blends an image with the smoothed image."""
ALL_LEVELS = np.arange(FULL + 1, dtype=np.uint8)[None]
_DIFFERENCES = np.arange(1, FULL + 1)


def blend(array: Array, factor: float, other: Array, other_factor: float, offset: float) -> Array:
    """Return the weighted sum of two images of uint8, clamped to 0..255 and truncated."""
    out = scratch.take(array.shape)
    # OpenCV rounds to the nearest value.
    cv2.addWeighted(array, factor, other, other_factor, offset - TRUNCATE, dst=out)
    return out


def _run_saturation(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with its grayscale image."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    if array.shape[2] == 1:
        return array
    gray = cv2.cvtColor(to_grayscale(array), cv2.COLOR_GRAY2RGB, dst=scratch.take(array.shape))
    # A sum is near a whole number where it was one before rounding: there, OpenCV's may be another.
    parts = factor * _DIFFERENCES
    if np.abs(parts - np.rint(parts)).min() < 1 - 2 * TRUNCATE:
        return _blend_in_torch(array, factor, gray)
    blended = blend(array, factor, gray, 1 - factor, 0.0)
    same = _blend_in_torch(ALL_LEVELS, factor, ALL_LEVELS)
    if not np.array_equal(blend(ALL_LEVELS, factor, ALL_LEVELS, 1 - factor, 0.0), same):
        equal = np.flatnonzero(array == gray)
        blended.reshape(-1)[equal] = same[0, array.reshape(-1)[equal]]
    return blended


def _blend_in_torch(array: Array, factor: float, gray: Array) -> Array:
    """Blend as torchvision does: torch rounds once where it multiplies and adds."""
    colors = torch.from_numpy(array).to(torch.float32).mul_(factor)
    colors.add_(torch.from_numpy(gray).to(torch.float32), alpha=1 - factor)
    return colors.clamp_(0, FULL).to(torch.uint8).numpy()


def to_grayscale(array: Array) -> Array:
    """Convert an image of uint8 (H, W, 3) to grayscale (H, W). The fractions are dropped.

    A running mean of the planes takes a quarter of the time of cv2.transform.
    """
    height, width = array.shape[:2]
    planes = scratch.take((3, height, width))
    cv2.split(array, list(planes))
    luma = scratch.take((height, width, 4)).view(np.float32)[..., 0]
    luma.fill(0)
    for plane, share in zip(planes, _SHARES, strict=True):
        cv2.accumulateWeighted(plane, luma, share)
    return cv2.convertScaleAbs(luma, scratch.take((height, width)), beta=-TRUNCATE)


def _run_sharpness(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with a blurred one. The pixels of the border stay as they are."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    smooth = with_channels(cv2.filter2D(array, -1, _SMOOTH, dst=scratch.take(array.shape)))
    sharp = blend(array, factor, smooth, 1 - factor, 0.0)
    for border in (np.s_[:1], np.s_[-1:], np.s_[:, :1], np.s_[:, -1:]):
        sharp[border] = array[border]
    return sharp


def _run_permute(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    if array.shape[2] == 1:
        return array
    permuted = scratch.take(array.shape)
    pairs = [n for pair in enumerate(op.values[0][row].tolist()) for n in reversed(pair)]
    cv2.mixChannels([array], [permuted], pairs)
    return permuted


def _run_blur(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blur with torchvision's weights, one axis after the other, in float32."""
    (kernel_size, sigma), array = (values[row] for values in op.values), as_packed(pixels)
    color_ops.check_blur(kernel_size, array.shape[:2])
    x, y = (_gaussian(int(k), float(s)) for k, s in zip(kernel_size, sigma, strict=True))
    border = cv2.BORDER_REFLECT_101
    blurred: Array = cv2.sepFilter2D(array, cv2.CV_32F, x, y, borderType=border)
    return with_channels(np.rint(blurred, out=blurred).astype(np.uint8))


def _gaussian(size: int, sigma: float) -> NDArray[np.float32]:
    last = (size - 1) / 2
    weights: NDArray[np.float64] = np.exp(-0.5 * (np.linspace(-last, last, size) / sigma) ** 2)
    return np.asarray(weights / weights.sum(), np.float32)


def _run_hue(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Turn the hue in float32. Like torchvision, truncate the new values instead of rounding."""
    factor = float(op.values[0][row])
    colors = as_packed(pixels).astype(np.float32)
    colors *= np.float32(1 / FULL)
    cv2.cvtColor(colors, cv2.COLOR_RGB2HSV, dst=colors)
    hue, saturation, value = cv2.split(colors)  # NumPy is slow on a plane with strides
    hue += np.float32(_CIRCLE * factor)
    hue += (hue < 0) * np.float32(_CIRCLE)  # these two lines take a tenth of the time of np.mod
    hue -= (hue >= _CIRCLE) * np.float32(_CIRCLE)
    cv2.merge([hue, saturation, value], dst=colors)
    cv2.cvtColor(colors, cv2.COLOR_HSV2RGB, dst=colors)
    colors *= np.float32(FULL + 1 - 1e-3)
    return colors.astype(np.uint8)


def _run_color_matrix(op: ops.ColorMatrixOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    matrix = np.asarray(op.matrices[row], np.float32)
    is_luma = len(matrix) in (1, RGB) and (matrix == _LUMA).all()
    if array.dtype == np.uint8 and is_luma:
        gray = to_grayscale(array)
        if len(matrix) == 1:
            return with_channels(gray)
        # This takes a third of the time of cv2.merge.
        return cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB, dst=scratch.take((*gray.shape, RGB)))
    mixed = with_channels(cv2.transform(array.astype(np.float32), matrix))
    if array.dtype == np.uint8:
        np.clip(mixed, 0, 255, out=mixed)  # astype truncates
    return mixed.astype(array.dtype)


def is_uint8(op: ops.ColorOp, channels: Collection[int] = (1, RGB)) -> bool:
    """Return whether an operation is on images of uint8 with one of these numbers of channels."""
    return op.spec.dtype == "uint8" and op.spec.channels in channels


def make_rule(
    color: str,
    name: str,
    run: Callable[[ops.ColorOp, Pixels, int], Pixels],
    channels: Collection[int] = (1, RGB),
) -> Rule:
    """Return the rule of a kernel that runs the color function `color` on images of uint8."""
    return single(ops.ColorOp, name, run, lambda op: op.name == color and is_uint8(op, channels))


RULES = [
    make_rule("permute_channels", "cv2.mixChannels", _run_permute),
    make_rule("adjust_saturation", "cv2.addWeighted", _run_saturation),
    make_rule("adjust_sharpness", "cv2.filter2D", _run_sharpness),
    make_rule("gaussian_blur", "cv2.sepFilter2D", _run_blur),
    make_rule("adjust_hue", "cv2.cvtColor", _run_hue, channels=(RGB,)),
    single(ops.ColorMatrixOp, "cv2.transform", _run_color_matrix),
]
