"""Kernels that change colours, with OpenCV: torchvision's arithmetic on uint8, in fewer passes.

If the new value of a channel depends only on its old value, the kernel is a lookup table of 256
values. Some tables are computed from the mean, the extremes or the histogram of the image. The
other kernels compute in float32, and truncate values where torchvision does.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import COLOR_OPS, LUMA
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.color_stages import has_formula, make_tables
from gpupipe.engines.cpu.pixels import Array, Pixels, as_array, as_packed, scratch, with_channels
from gpupipe.engines.cpu.program import Rule, Series, SwitchOp, single

_RGB, _FULL = 3, 255
_CIRCLE = 360  # degrees
_TRUNCATE = 0.49995
"""What is subtracted before OpenCV rounds, so that fractions are dropped.

Fractions of the luma are multiples of 1 / 10,000.
"""
_LUMA = np.array([LUMA], np.float32)
_SHARES = LUMA[0] / (1 - LUMA[1] - LUMA[2]), LUMA[1] / (1 - LUMA[2]), LUMA[2]
"""LUMA as a running mean: sum = (1 - share) * sum + share * plane, from 0."""
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""The smoothing filter of adjust_sharpness, which blends an image with the smoothed image."""
_ALL_VALUES = np.arange(_FULL + 1, dtype=np.float32)
_LEVELS = np.arange(_FULL + 1, dtype=np.uint8)[None]
_DIFFERENCES = np.arange(1, _FULL + 1)
_EXACT_PIXELS, _ROWS_APART = 1 << 16, 16
"""See `_find_mean`."""


def _run_pointwise(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    return _apply_table(as_packed(pixels), _find_pointwise(op, row))


def _find_pointwise(op: ops.ColorOp, row: int) -> Array:
    """Return the new level of each level, (1, 256)."""
    rows = np.arange(len(op.values[0]) if op.values else 1) == row
    return make_tables(op, rows)


def _apply_table(array: Array, table: Array) -> Array:
    """Look up each value in a table (1, 256), or (1, 256, C) if each channel has its own table."""
    return with_channels(cv2.LUT(array, table, dst=scratch.take(array.shape)))


def _blend(array: Array, factor: float, other: Array, other_factor: float, offset: float) -> Array:
    """Return the weighted sum of two images of uint8, clamped to 0..255 and truncated."""
    out = scratch.take(array.shape)
    # OpenCV rounds to the nearest value.
    cv2.addWeighted(array, factor, other, other_factor, offset - _TRUNCATE, dst=out)
    return out


def _scale(array: Array, factor: float, offset: np.float32) -> Array:
    """Compute factor * v + offset for each value v, clamped and truncated, as torch does."""
    table = _find_scaled(factor, offset)
    # These are faster than a lookup, each than the next. They round some whole numbers the other
    # way, and the first makes negative numbers positive.
    if np.array_equal(_stretch_absolute(_LEVELS, factor, offset), table):
        return _stretch_absolute(array, factor, offset)
    if np.array_equal(_blend(_LEVELS, factor, _LEVELS, 0.0, float(offset)), table):
        return _blend(array, factor, array, 0.0, float(offset))
    return _apply_table(array, table)


def _stretch_absolute(array: Array, factor: float, offset: np.float32) -> Array:
    out = scratch.take(array.shape)
    return with_channels(cv2.convertScaleAbs(array, out, factor, float(offset) - _TRUNCATE))


def _find_scaled(factor: float, offset: np.float32) -> Array:
    return _cut(_ALL_VALUES * np.float32(factor) + offset)[None]


def _run_brightness(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    return _scale(as_packed(pixels), float(op.values[0][row]), np.float32(0))


def _run_contrast(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with the mean of its grayscale image."""
    array = as_packed(pixels)
    return _scale(array, *_find_contrast(op, array, row))


def _find_contrast(
    op: ops.ColorOp, array: Array, row: int, is_last: bool = False
) -> tuple[float, np.float32]:
    """Return the factor and the offset of a change of contrast."""
    factor, mean = float(op.values[0][row]), _find_mean(array, is_last)
    return factor, np.float32(mean) * np.float32(1 - factor)


def _find_mean(array: Array, is_last: bool) -> float:
    """Return the mean of the grayscale image.

    If `is_last`, nothing can enlarge a difference of a level that the mean makes. Then the mean of
    a large image takes a quarter of the time: the mean of the luma is exact, and the fractions that
    a grayscale image drops are those of every 16th row. Photographs differ by 0.01 levels from
    there to the other rows, and no image by more than 1.
    """
    pixels = array.shape[0] * array.shape[1]
    if array.shape[2] == 1:
        return _find_luma(array[..., 0])
    if pixels <= _EXACT_PIXELS or not is_last:
        return _find_luma(_to_grayscale(array))
    rows = array[::_ROWS_APART]
    fractions = _find_luma(rows) - _find_luma(_to_grayscale(rows))
    return _find_luma(array) - fractions


def _find_luma(array: Array) -> float:
    """Return the mean of the luma, with its fractions; of a grayscale image (H, W), the mean."""
    sums = cv2.sumElems(array)
    total = sums[0] if array.ndim == 2 else np.dot(LUMA, sums[:_RGB])
    return float(total / (array.shape[0] * array.shape[1]))


def _run_scaled_by_mean(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    return _scale(array, *_find_scaled_by_mean(op, array, row))


def _find_scaled_by_mean(op: ops.ColorOp, array: Array, row: int) -> tuple[float, np.float32]:
    """Return the factor and the offset of a change by the mean of all values."""
    factor, shift = (float(values[row]) for values in op.values)
    return factor, np.float32(shift * sum(cv2.sumElems(array)) / array.size)


def _run_saturation(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with its grayscale image."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    if array.shape[2] == 1:
        return array
    gray = cv2.cvtColor(_to_grayscale(array), cv2.COLOR_GRAY2RGB, dst=scratch.take(array.shape))
    # A sum is near a whole number where it was one before rounding: there, OpenCV's may be another.
    parts = factor * _DIFFERENCES
    if np.abs(parts - np.rint(parts)).min() < 1 - 2 * _TRUNCATE:
        return _blend_in_torch(array, factor, gray)
    blended = _blend(array, factor, gray, 1 - factor, 0.0)
    same = _blend_in_torch(_LEVELS, factor, _LEVELS)
    if not np.array_equal(_blend(_LEVELS, factor, _LEVELS, 1 - factor, 0.0), same):
        equal = np.flatnonzero(array == gray)
        blended.reshape(-1)[equal] = same[0, array.reshape(-1)[equal]]
    return blended


def _blend_in_torch(array: Array, factor: float, gray: Array) -> Array:
    """Blend as torchvision does: torch rounds once where it multiplies and adds."""
    colors = torch.from_numpy(array).to(torch.float32).mul_(factor)
    colors.add_(torch.from_numpy(gray).to(torch.float32), alpha=1 - factor)
    return colors.clamp_(0, _FULL).to(torch.uint8).numpy()


def _to_grayscale(array: Array) -> Array:
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
    return cv2.convertScaleAbs(luma, scratch.take((height, width)), beta=-_TRUNCATE)


def _run_sharpness(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with a blurred one. The pixels of the border stay as they are."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    smooth = with_channels(cv2.filter2D(array, -1, _SMOOTH, dst=scratch.take(array.shape)))
    sharp = _blend(array, factor, smooth, 1 - factor, 0.0)
    for border in (np.s_[:1], np.s_[-1:], np.s_[:, :1], np.s_[:, -1:]):
        sharp[border] = array[border]
    return sharp


def _run_invert(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    return np.invert(array, out=scratch.take(array.shape))


def _run_posterize(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array, mask = as_packed(pixels), np.uint8(256 - (1 << (8 - int(op.values[0][row]))))
    return np.bitwise_and(array, mask, out=scratch.take(array.shape))


def _run_solarize(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Invert the values from the threshold on: 255 - v is v ^ 255. torch compares in float32."""
    array, threshold = as_packed(pixels), math.ceil(np.float32(op.values[0][row]))
    if threshold > _FULL:
        return array
    solarized = scratch.take(array.shape)
    np.greater_equal(array, np.uint8(max(threshold, 0)), out=solarized.view(np.bool_))
    np.negative(solarized, out=solarized)  # 1 becomes 255
    return np.bitwise_xor(array, solarized, out=solarized)


def _run_permute(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    if array.shape[2] == 1:
        return array
    permuted = scratch.take(array.shape)
    pairs = [n for pair in enumerate(op.values[0][row].tolist()) for n in reversed(pair)]
    cv2.mixChannels([array], [permuted], pairs)
    return permuted


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
    is_luma = len(matrix) in (1, _RGB) and (matrix == _LUMA).all()
    if array.dtype == np.uint8 and is_luma:
        gray = _to_grayscale(array)
        if len(matrix) == 1:
            return with_channels(gray)
        # This takes a third of the time of cv2.merge.
        return cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB, dst=scratch.take((*gray.shape, _RGB)))
    mixed = with_channels(cv2.transform(array.astype(np.float32), matrix))
    if array.dtype == np.uint8:
        np.clip(mixed, 0, 255, out=mixed)  # astype truncates
    return mixed.astype(array.dtype)


def find_levels(series: Iterable[ops.Op], array: Array, row: int) -> Array | None:
    """Return the new level of each level of an image, after successive changes of levels.

    Args:
        series: The operations. `LEVELS` accepts each of them.
        array: The image before them, (H, W, C), packed.
        row: The row of the sample.

    Returns:
        The levels, (256, 1) or (256, C); None if nothing changes in this sample.
    """
    levels = None
    waiting: list[tuple[ops.ColorOp, Array]] = []
    """The changes that `array` lacks, and their tables."""
    changes = list(_list_changes(series, row))
    for op in changes:
        if op.name in _BY_IMAGE:
            for change, table in waiting:
                array = _change_levels(change, array, table, row)
            waiting = []
        table = _find_table(op, array, row, op is changes[-1])
        levels = table if levels is None else _compose(levels, table)
        waiting.append((op, table))
    return levels


def _list_changes(series: Iterable[ops.Op], row: int) -> Iterator[ops.ColorOp]:
    """Yield the changes of a sample, without switches."""
    for op in series:
        if isinstance(op, SwitchOp):
            yield from _list_changes(op.branches[int(op.index[row])].ops, row)
        else:
            assert isinstance(op, ops.ColorOp)
            yield op


def _change_levels(op: ops.ColorOp, array: Array, table: Array, row: int) -> Array:
    if op.name == "adjust_brightness":
        return _scale(array, float(op.values[0][row]), np.float32(0))
    return _apply_table(array, table[None])


def _compose(first: Array, then: Array) -> Array:
    """Return the levels (256, C) after two changes, each (256, 1) or (256, C)."""
    channels = max(first.shape[1], then.shape[1])
    then = np.broadcast_to(then, (len(then), channels))
    return np.take_along_axis(then, np.broadcast_to(first, then.shape).astype(np.intp), 0)


def _find_table(op: ops.ColorOp, array: Array, row: int, is_last: bool) -> Array:
    """Return the new level of each level of an image, (256, 1) or (256, C)."""
    if op.name in _BY_PLANE:
        return np.stack([_BY_PLANE[op.name](plane) for plane in cv2.split(array)], -1)
    if op.name == "adjust_contrast":
        return _find_scaled(*_find_contrast(op, array, row, is_last)).T
    if op.name == "scale_and_shift_by_mean":
        return _find_scaled(*_find_scaled_by_mean(op, array, row)).T
    if op.name == "adjust_brightness":
        return _find_scaled(float(op.values[0][row]), np.float32(0)).T
    if op.name in _ON_LEVELS:  # the kernel of an image takes less time than torch on 256 levels
        return as_array(_ON_LEVELS[op.name](op, _LEVELS.reshape(-1, 1, 1), row))[:, :, 0]
    return _find_pointwise(op, row).T


def _is_levels(op: ops.Op) -> bool:
    if isinstance(op, SwitchOp):
        return all(_is_levels(part) for branch in op.branches for part in branch.ops)
    if not isinstance(op, ops.ColorOp) or not _is_uint8(op):
        return False
    return op.name in _BY_IMAGE or COLOR_OPS[op.name].is_pointwise


_ON_LEVELS = {"invert": _run_invert, "posterize": _run_posterize, "solarize": _run_solarize}
_BY_PLANE = {"autocontrast": _stretch, "equalize": _equalize}
_BY_IMAGE = {"adjust_contrast", "scale_and_shift_by_mean", *_BY_PLANE}
"""Changes of levels that depend on the image."""
LEVELS = Series((ops.ColorOp, SwitchOp), _is_levels)
"""Operations that replace each level of an image, or of each of its channels, by another."""


def needs_torchvision(op: ops.Op) -> bool:
    """Return whether torchvision computes the levels of a change, which is no switch."""
    own = {"adjust_brightness", *_BY_IMAGE, *_ON_LEVELS}
    return isinstance(op, ops.ColorOp) and op.name not in own and not has_formula(op)


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
    _rule("adjust_brightness", "cv2.addWeighted", _run_brightness),
    _rule("invert", "numpy.invert", _run_invert),
    _rule("posterize", "numpy.bitwise_and", _run_posterize),
    _rule("solarize", "numpy.bitwise_xor", _run_solarize),
    _rule("permute_channels", "cv2.mixChannels", _run_permute),
    single(ops.ColorOp, "cv2.LUT", _run_pointwise, _is_pointwise, needs_torchvision=True),
    _rule("adjust_contrast", "cv2.addWeighted", _run_contrast),
    _rule("scale_and_shift_by_mean", "cv2.addWeighted", _run_scaled_by_mean),
    _rule("autocontrast", "cv2.LUT", partial(_run_by_plane, _stretch)),
    _rule("equalize", "cv2.LUT", partial(_run_by_plane, _equalize)),
    _rule("adjust_saturation", "cv2.addWeighted", _run_saturation),
    _rule("adjust_sharpness", "cv2.filter2D", _run_sharpness),
    _rule("gaussian_blur", "cv2.sepFilter2D", _run_blur),
    _rule("adjust_hue", "cv2.cvtColor", _run_hue, channels=(_RGB,)),
    single(ops.ColorMatrixOp, "cv2.transform", _run_color_matrix),
]
