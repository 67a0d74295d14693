"""Kernels that replace each level of an image by another, with OpenCV, on uint8.

They are lookup tables of 256 values, or a faster operation with the same result. Some tables are
computed from the mean, the extremes or the histogram of the image. Successive tables are one: see
`find_levels`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_ops import COLOR_OPS, LUMA
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.color_stages import has_formula, make_tables
from gpupipe.engines.cpu.opencv_colors import (
    ALL_LEVELS,
    FULL,
    RGB,
    TRUNCATE,
    blend,
    is_uint8,
    make_rule,
    to_grayscale,
)
from gpupipe.engines.cpu.pixels import Array, Pixels, as_array, as_packed, scratch, with_channels
from gpupipe.engines.cpu.program import Series, SwitchOp, single

_ALL_VALUES = np.arange(FULL + 1, dtype=np.float32)
_EXACT_PIXELS, _ROWS_APART = 1 << 16, 16
"""See `_find_mean`."""


def _run_pointwise(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    return _apply_table(as_packed(pixels), _find_pointwise(op, row))


def _find_pointwise(op: ops.ColorOp, row: int) -> Array:
    """Return the new level of each level, (1, 256)."""
    count = len(op.values[0]) if op.values else row + 1
    return make_tables(op, np.arange(count) == row)


def _apply_table(array: Array, table: Array) -> Array:
    """Look up each value in a table (1, 256), or (1, 256, C) if each channel has its own table."""
    return with_channels(cv2.LUT(array, table, dst=scratch.take(array.shape)))


def _scale(array: Array, factor: float, offset: np.float32) -> Array:
    """Compute factor * v + offset for each value v, clamped and truncated, as torch does."""
    table = _find_scaled(factor, offset)
    # These are faster than a lookup, each than the next. They round some whole numbers the other
    # way, and the first makes negative numbers positive.
    if np.array_equal(_stretch_absolute(ALL_LEVELS, factor, offset)[..., 0], table):
        return _stretch_absolute(array, factor, offset)
    if np.array_equal(blend(ALL_LEVELS, factor, ALL_LEVELS, 0.0, float(offset)), table):
        return blend(array, factor, array, 0.0, float(offset))
    return _apply_table(array, table)


def _stretch_absolute(array: Array, factor: float, offset: np.float32) -> Array:
    out = scratch.take(array.shape)
    return with_channels(cv2.convertScaleAbs(array, out, factor, float(offset) - TRUNCATE))


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
        return _find_luma(to_grayscale(array))
    rows = array[::_ROWS_APART]
    fractions = _find_luma(rows) - _find_luma(to_grayscale(rows))
    return _find_luma(array) - fractions


def _find_luma(array: Array) -> float:
    """Return the mean of the luma, with its fractions; of a grayscale image (H, W), the mean."""
    sums = cv2.sumElems(array)
    total = sums[0] if array.ndim == 2 else np.dot(LUMA, sums[:RGB])
    return float(total / (array.shape[0] * array.shape[1]))


def _run_scaled_by_mean(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    return _scale(array, *_find_scaled_by_mean(op, array, row))


def _find_scaled_by_mean(op: ops.ColorOp, array: Array, row: int) -> tuple[float, np.float32]:
    """Return the factor and the offset of a change by the mean of all values."""
    factor, shift = (float(values[row]) for values in op.values)
    return factor, np.float32(shift * sum(cv2.sumElems(array)) / array.size)


def _run_invert(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    return np.invert(array, out=scratch.take(array.shape))


def _run_posterize(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    array, mask = as_packed(pixels), np.uint8(256 - (1 << (8 - int(op.values[0][row]))))
    return np.bitwise_and(array, mask, out=scratch.take(array.shape))


def _run_solarize(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Invert the values from the threshold on: 255 - v is v ^ 255. torch compares in float32."""
    array, threshold = as_packed(pixels), math.ceil(np.float32(op.values[0][row]))
    if threshold > FULL:
        return array
    solarized = scratch.take(array.shape)
    np.greater_equal(array, np.uint8(max(threshold, 0)), out=solarized.view(np.bool_))
    np.negative(solarized, out=solarized)  # 1 becomes 255
    return np.bitwise_xor(array, solarized, out=solarized)


def _cut(values: NDArray[np.float32]) -> Array:
    """Clamp values to 0..255, and drop their fractions. Changes `values`."""
    return np.clip(values, 0, FULL, out=values).astype(np.uint8)


def _stretch(plane: Array) -> Array:
    """Return the table that maps the minimum of a plane to 0, and its maximum to 255."""
    low, high = cv2.minMaxLoc(plane)[:2]
    if low == high:
        return _ALL_VALUES.astype(np.uint8)
    scale = np.float32(high - low) * np.float32(1 / FULL)
    return _cut((_ALL_VALUES - np.float32(low)) / scale)


def _equalize(plane: Array) -> Array:
    """Return the table that makes the histogram of a plane even, as Pillow and torchvision do."""
    histogram = cv2.calcHist([plane], [0], None, [FULL + 1], [0, FULL + 1])
    counts = histogram.reshape(-1).astype(np.int64)
    below = np.cumsum(counts) - counts
    step = (plane.size - counts[np.flatnonzero(counts)[-1]]) // FULL
    if step == 0:
        return _ALL_VALUES.astype(np.uint8)
    table: NDArray[np.int64] = np.minimum((below + step // 2) // step, FULL)
    return table.astype(np.uint8)


def _run_by_plane(
    make_table: Callable[[Array], Array], op: ops.ColorOp, pixels: Pixels, row: int
) -> Pixels:
    """Apply to each channel the table that `make_table` computes from that channel."""
    array = as_packed(pixels)
    planes = cv2.split(array)
    return _apply_table(array, np.stack([make_table(plane) for plane in planes], -1)[None])


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
        return as_array(_ON_LEVELS[op.name](op, ALL_LEVELS.reshape(-1, 1, 1), row))[:, :, 0]
    return _find_pointwise(op, row).T


def _is_levels(op: ops.Op) -> bool:
    if isinstance(op, SwitchOp):
        return all(_is_levels(part) for branch in op.branches for part in branch.ops)
    if not isinstance(op, ops.ColorOp) or not is_uint8(op):
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
    return is_uint8(op) and COLOR_OPS[op.name].is_pointwise


RULES = [
    make_rule("adjust_brightness", "cv2.addWeighted", _run_brightness),
    make_rule("invert", "numpy.invert", _run_invert),
    make_rule("posterize", "numpy.bitwise_and", _run_posterize),
    make_rule("solarize", "numpy.bitwise_xor", _run_solarize),
    single(ops.ColorOp, "cv2.LUT", _run_pointwise, _is_pointwise, needs_torchvision=True),
    make_rule("adjust_contrast", "cv2.addWeighted", _run_contrast),
    make_rule("scale_and_shift_by_mean", "cv2.addWeighted", _run_scaled_by_mean),
    make_rule("autocontrast", "cv2.LUT", partial(_run_by_plane, _stretch)),
    make_rule("equalize", "cv2.LUT", partial(_run_by_plane, _equalize)),
]
