"""Kernels that change colours, with OpenCV: torchvision's arithmetic on uint8, in fewer passes.

Where a new level depends on the old one alone, the kernel is a table of 256 levels: it may be made
from the mean, the extremes or the histogram of the image. The other kernels compute in float32, and
drop fractions of levels where torchvision does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import COLOR_OPS, LUMA
from gpupipe.engines.cpu.pixels import as_packed, with_channels
from gpupipe.engines.cpu.program import Calls, Kernel, Table
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.engines.value_tables import LEVELS

_RGB, _FULL = 3, 255
_CIRCLE = 360  # degrees
_LUMA = np.array([LUMA], np.float32)
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""The blur that a sharpness below 1 goes to."""
_ALL_LEVELS = np.arange(_FULL + 1, dtype=np.float32)


def _run_pointwise(pixels: Any, calls: Calls, row: int) -> Any:
    op, values = calls[0].options, calls[0].rows[row]
    return _look_up(as_packed(pixels), color_ops.apply(op, LEVELS, values).numpy())


def _look_up(array: NDArray[np.uint8], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Replace levels by those of a table (1, 256), or (1, 256, C) with one for each channel."""
    return with_channels(cv2.LUT(array, table, dst=scratch.take(array.shape)))


def _run_contrast(pixels: Any, calls: Calls, row: int) -> Any:
    """Blend an image with the mean of its grayscale image."""
    array, factor = as_packed(pixels), float(calls[0].rows[row][0])
    gray = array if array.shape[2] == 1 else _to_grayscale(array.astype(np.float32))
    mean = np.float32(gray.mean(dtype=np.float64))
    levels = _ALL_LEVELS * np.float32(factor) + mean * np.float32(1 - factor)
    return _look_up(array, _cut(levels)[None])


def _run_saturation(pixels: Any, calls: Calls, row: int) -> Any:
    """Blend an image with its grayscale image."""
    array, factor = as_packed(pixels), float(calls[0].rows[row][0])
    if array.shape[2] == 1:
        return array
    colors = array.astype(np.float32)
    gray: Any = cv2.cvtColor(_to_grayscale(colors), cv2.COLOR_GRAY2RGB)
    # torch multiplies and adds with one rounding, which NumPy cannot.
    torch.from_numpy(colors).mul_(factor).add_(torch.from_numpy(gray), alpha=1 - factor)
    return _cut(colors)


def _to_grayscale(colors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the grayscale image (H, W) of an image (H, W, 3), both in levels of 0 to 255."""
    gray: Any = cv2.transform(colors, _LUMA)
    return np.floor(gray, out=gray)  # type: ignore[no-any-return]


def _run_sharpness(pixels: Any, calls: Calls, row: int) -> Any:
    """Blend an image with a blurred one. The pixels of the border stay as they are."""
    array, factor = as_packed(pixels), float(calls[0].rows[row][0])
    colors = array.astype(np.float32)
    change: Any = with_channels(cv2.filter2D(array, cv2.CV_32F, _SMOOTH))
    np.rint(change, out=change)
    change -= colors
    change *= np.float32(1 - factor)
    colors[1:-1, 1:-1] += change[1:-1, 1:-1]
    return _cut(colors)


def _cut(levels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Clamp levels to 0..255, and drop their fractions. Changes `levels`."""
    return np.clip(levels, 0, _FULL, out=levels).astype(np.uint8)


def _run_autocontrast(pixels: Any, calls: Calls, row: int) -> Any:
    return _look_up_planes(as_packed(pixels), _stretch)


def _stretch(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the table that spreads the levels of a plane over all levels."""
    least, most = cv2.minMaxLoc(plane)[:2]
    if least == most:
        return _ALL_LEVELS.astype(np.uint8)
    scale = np.float32(most - least) * np.float32(1 / _FULL)
    return _cut((_ALL_LEVELS - np.float32(least)) / scale)


def _run_equalize(pixels: Any, calls: Calls, row: int) -> Any:
    return _look_up_planes(as_packed(pixels), _equalize)


def _equalize(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the table that makes the histogram of a plane even, as Pillow and torchvision do."""
    found = cv2.calcHist([plane], [0], None, [_FULL + 1], [0, _FULL + 1])
    counts = found.reshape(-1).astype(np.int64)
    below = np.cumsum(counts) - counts
    step = (plane.size - counts[np.flatnonzero(counts)[-1]]) // _FULL
    if step == 0:
        return _ALL_LEVELS.astype(np.uint8)
    table: NDArray[np.int64] = np.minimum((below + step // 2) // step, _FULL)
    return table.astype(np.uint8)


def _look_up_planes(
    array: NDArray[np.uint8], make_table: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """Replace the levels of each channel by those of a table that is made from the channel."""
    planes: Any = cv2.split(array)
    return _look_up(array, np.stack([make_table(plane) for plane in planes], -1)[None])


def _run_blur(pixels: Any, calls: Calls, row: int) -> Any:
    """Blur with torchvision's weights, one axis after the other, in float32."""
    (kernel_size, sigma), array = calls[0].rows[row], as_packed(pixels)
    color_ops.check_blur(kernel_size, array.shape[:2])
    x, y = (_gaussian(int(k), float(s)) for k, s in zip(kernel_size, sigma, strict=True))
    border = cv2.BORDER_REFLECT_101
    blurred: Any = cv2.sepFilter2D(array, cv2.CV_32F, x, y, borderType=border)
    return with_channels(np.rint(blurred, out=blurred).astype(np.uint8))


def _gaussian(size: int, sigma: float) -> NDArray[np.float32]:
    last = (size - 1) / 2
    weights: NDArray[np.float64] = np.exp(-0.5 * (np.linspace(-last, last, size) / sigma) ** 2)
    return np.asarray(weights / weights.sum(), np.float32)


def _run_hue(pixels: Any, calls: Calls, row: int) -> Any:
    """Turn the hue in float32, as torchvision does; its levels are cut, not rounded."""
    (factor,) = calls[0].rows[row]
    colors: Any = as_packed(pixels).astype(np.float32)
    colors *= np.float32(1 / _FULL)
    cv2.cvtColor(colors, cv2.COLOR_RGB2HSV, dst=colors)
    hue = colors[:, :, 0]
    hue += np.float32(_CIRCLE * factor)
    np.mod(hue, np.float32(_CIRCLE), out=hue)
    cv2.cvtColor(colors, cv2.COLOR_HSV2RGB, dst=colors)
    colors *= np.float32(_FULL + 1 - 1e-3)
    return colors.astype(np.uint8)


def _run_color_matrix(pixels: Any, calls: Calls, row: int) -> Any:
    array = as_packed(pixels)
    matrix = np.asarray(calls[0].rows[row], np.float32)
    made = with_channels(cv2.transform(array.astype(np.float32), matrix))
    if array.dtype == np.uint8:
        np.clip(made, 0, 255, out=made)  # astype truncates
    return made.astype(array.dtype)


def _of_uint8(*ops: str, channels: Collection[int] = (1, _RGB)) -> Callable[[Calls], bool]:
    """Return a function that tells whether a call is one of `ops`, on such images of uint8."""

    def takes(calls: Calls) -> bool:
        spec, op = calls[0].spec, calls[0].options
        return spec.dtype == "uint8" and op in ops and spec.channels in channels

    return takes


def _is_pointwise(calls: Calls) -> bool:
    return COLOR_OPS[calls[0].options].is_pointwise and _of_uint8(calls[0].options)(calls)


TABLE: Table = {
    ("color",): [
        Kernel(_run_pointwise, "cv2.LUT", _is_pointwise, needs_torchvision=True),
        Kernel(_run_contrast, "cv2.LUT", _of_uint8("adjust_contrast")),
        Kernel(_run_autocontrast, "cv2.LUT", _of_uint8("autocontrast")),
        Kernel(_run_equalize, "cv2.LUT", _of_uint8("equalize")),
        Kernel(_run_saturation, "cv2.transform", _of_uint8("adjust_saturation")),
        Kernel(_run_sharpness, "cv2.filter2D", _of_uint8("adjust_sharpness")),
        Kernel(_run_blur, "cv2.sepFilter2D", _of_uint8("gaussian_blur")),
        Kernel(_run_hue, "cv2.cvtColor", _of_uint8("adjust_hue", channels=(_RGB,))),
    ],
    ("color_matrix",): [Kernel(_run_color_matrix, "cv2.transform")],
}
"""The kernels of each group of primitives."""
