"""Kernels that change colours, with OpenCV: torchvision's arithmetic on uint8, in fewer passes.

If the new value of a channel depends only on its old value, the kernel is a lookup table of 256
values. Some tables are computed from the mean, the extremes or the histogram of the image. The
other kernels compute in float32, and truncate values where torchvision does.
"""

from collections.abc import Callable, Collection
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import COLOR_OPS, LUMA
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.ops import Array, Pixels, as_packed, scratch, with_channels
from gpupipe.engines.cpu.program import Rule, single
from gpupipe.engines.last_steps import VALUES

_RGB, _FULL = 3, 255
_CIRCLE = 360  # degrees
_LUMA = np.array([LUMA], np.float32)
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""The smoothing filter of adjust_sharpness, which blends an image with the smoothed image."""
_ALL_VALUES = np.arange(_FULL + 1, dtype=np.float32)


def _run_pointwise(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    return _apply_table(
        as_packed(pixels), color_ops.apply(op.name, VALUES, op.values_of(row)).numpy()
    )


def _apply_table(array: Array, table: Array) -> Array:
    """Look up each value in a table (1, 256), or (1, 256, C) if each channel has its own table."""
    return with_channels(cv2.LUT(array, table, dst=scratch.take(array.shape)))


def _run_contrast(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with the mean of its grayscale image."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    gray = array if array.shape[2] == 1 else _to_grayscale(array.astype(np.float32))
    mean = np.float32(gray.mean(dtype=np.float64))
    values = _ALL_VALUES * np.float32(factor) + mean * np.float32(1 - factor)
    return _apply_table(array, _cut(values)[None])


def _run_saturation(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with its grayscale image."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    if array.shape[2] == 1:
        return array
    colors = array.astype(np.float32)
    gray: Array = cv2.cvtColor(_to_grayscale(colors), cv2.COLOR_GRAY2RGB)
    # torch multiplies and adds with one rounding, which NumPy cannot.
    torch.from_numpy(colors).mul_(factor).add_(torch.from_numpy(gray), alpha=1 - factor)
    return _cut(colors)


def _to_grayscale(colors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert an image (H, W, 3) to grayscale (H, W). The values of both are 0 to 255."""
    gray: Array = cv2.transform(colors, _LUMA)
    return np.floor(gray, out=gray)


def _run_sharpness(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with a blurred one. The pixels of the border stay as they are."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    colors = array.astype(np.float32)
    change = np.empty_like(colors)
    cv2.filter2D(array, cv2.CV_32F, _SMOOTH, dst=change)
    np.rint(change, out=change)
    change -= colors
    change *= np.float32(1 - factor)
    colors[1:-1, 1:-1] += change[1:-1, 1:-1]
    return _cut(colors)


def _cut(values: NDArray[np.float32]) -> Array:
    """Clamp values to 0..255, and drop their fractions. Changes `values`."""
    return np.clip(values, 0, _FULL, out=values).astype(np.uint8)


def _stretch(plane: Array) -> Array:
    """Return the table that maps the minimum of a plane to 0, and its maximum to 255."""
    low, high = cv2.minMaxLoc(plane)[:2]
    if low == high:
        return _ALL_VALUES.astype(np.uint8)
    scale = np.float32(high - low) * np.float32(1 / _FULL)
    return _cut((_ALL_VALUES - np.float32(low)) / scale)


def _equalize(plane: Array) -> Array:
    """Return the table that makes the histogram of a plane even, as Pillow and torchvision do."""
    histogram = cv2.calcHist([plane], [0], None, [_FULL + 1], [0, _FULL + 1])
    counts = histogram.reshape(-1).astype(np.int64)
    below = np.cumsum(counts) - counts
    step = (plane.size - counts[np.flatnonzero(counts)[-1]]) // _FULL
    if step == 0:
        return _ALL_VALUES.astype(np.uint8)
    table: NDArray[np.int64] = np.minimum((below + step // 2) // step, _FULL)
    return table.astype(np.uint8)


def _run_by_plane(
    make_table: Callable[[Array], Array], op: ops.ColorOp, pixels: Pixels, row: int
) -> Pixels:
    """Apply to each channel the table that `make_table` computes from that channel."""
    array = as_packed(pixels)
    planes = cv2.split(array)
    return _apply_table(array, np.stack([make_table(plane) for plane in planes], -1)[None])


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
    colors *= np.float32(1 / _FULL)
    cv2.cvtColor(colors, cv2.COLOR_RGB2HSV, dst=colors)
    hue, saturation, value = cv2.split(colors)  # NumPy is slow on a plane with strides
    hue += np.float32(_CIRCLE * factor)
    hue += (hue < 0) * np.float32(_CIRCLE)  # these two lines take a tenth of the time of np.mod
    hue -= (hue >= _CIRCLE) * np.float32(_CIRCLE)
    cv2.merge([hue, saturation, value], dst=colors)
    cv2.cvtColor(colors, cv2.COLOR_HSV2RGB, dst=colors)
    colors *= np.float32(_FULL + 1 - 1e-3)
    return colors.astype(np.uint8)


def _run_color_matrix(op: ops.ColorMatrixOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    matrix = np.asarray(op.matrices[row], np.float32)
    mixed = with_channels(cv2.transform(array.astype(np.float32), matrix))
    if array.dtype == np.uint8:
        np.clip(mixed, 0, 255, out=mixed)  # astype truncates
    return mixed.astype(array.dtype)


def _is_pointwise(op: ops.ColorOp) -> bool:
    return _is_uint8(op) and COLOR_OPS[op.name].is_pointwise


def _is_uint8(op: ops.ColorOp, channels: Collection[int] = (1, _RGB)) -> bool:
    return op.spec.dtype == "uint8" and op.spec.channels in channels


def _rule(
    color: str,
    name: str,
    run: Callable[[ops.ColorOp, Pixels, int], Pixels],
    channels: Collection[int] = (1, _RGB),
) -> Rule:
    """Return the rule of a kernel that runs the color function `color` on images of uint8."""
    return single(ops.ColorOp, name, run, lambda op: op.name == color and _is_uint8(op, channels))


RULES = [
    single(ops.ColorOp, "cv2.LUT", _run_pointwise, _is_pointwise, needs_torchvision=True),
    _rule("adjust_contrast", "cv2.LUT", _run_contrast),
    _rule("autocontrast", "cv2.LUT", partial(_run_by_plane, _stretch)),
    _rule("equalize", "cv2.LUT", partial(_run_by_plane, _equalize)),
    _rule("adjust_saturation", "cv2.transform", _run_saturation),
    _rule("adjust_sharpness", "cv2.filter2D", _run_sharpness),
    _rule("gaussian_blur", "cv2.sepFilter2D", _run_blur),
    _rule("adjust_hue", "cv2.cvtColor", _run_hue, channels=(_RGB,)),
    single(ops.ColorMatrixOp, "cv2.transform", _run_color_matrix),
]
