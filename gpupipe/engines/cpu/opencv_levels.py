"""Kernels that replace each level of an image by another, with OpenCV, on uint8.

They are lookup tables of 256 values, or a faster operation with the same result. Some tables are
computed from the mean, the extremes or the histogram of the image. Successive tables are one: see
`find_levels`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.color_stages import has_formula, make_tables
from gpupipe.engines.cpu.opencv_colors import (
    ALL_LEVELS,
    FULL,
    RGB,
    TRUNCATE,
    estimate_mean,
    find_mean,
    is_uint8,
    make_rule,
    split,
)
from gpupipe.engines.cpu.opencv_lookup import IDENTITY, look_up
from gpupipe.engines.cpu.patterns import Series
from gpupipe.engines.cpu.pixels import Array, Pixels, as_array, as_packed, scratch, with_channels
from gpupipe.engines.cpu.program import SwitchOp, single

_ALL_VALUES = np.arange(FULL + 1, dtype=np.float32)
_MIN, _MAX = (np.array(value, np.float32) for value in (0, FULL))
"""Arrays without axes: NumPy takes twice as long with a number."""
_EXACT_PIXELS = 1 << 16
"""See `_can_estimate`."""


def _run_table(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    planes = split(pixels)
    return _look_up(planes, _find_table(op, planes, row)).transpose(1, 2, 0)


def _find_pointwise(op: ops.ColorOp, row: int) -> Array:
    """Return the new level of each level, (1, 256)."""
    count = len(op.values[0]) if op.values else row + 1
    return make_tables(op, np.arange(count) == row)


def _look_up(planes: Array, levels: Array, out: Array | None = None) -> Array:
    """Replace the levels of planes, (C, H, W), by `levels`, (256, 1) or (256, C).

    `out` takes the new planes, and may be `planes`; None for scratch memory.
    """
    changed = scratch.take(planes.shape) if out is None else out
    tables = np.ascontiguousarray(levels.T)
    if len(tables) == 1:
        return look_up(planes, tables, changed)
    for plane, table, part in zip(planes, tables, changed, strict=True):
        look_up(plane, table, part)
    return changed


def _scale(array: Array, factor: float, offset: np.float32) -> Array:
    """Compute factor * v + offset for each value v, clamped and truncated, as torch does."""
    table = _find_scaled(factor, offset)
    # These are faster than a lookup, each than the next. They round some whole numbers the other
    # way, and the first makes negative numbers positive.
    for run in (_scale_absolute, _scale_clamped):
        if np.array_equal(run(ALL_LEVELS, factor, float(offset))[..., 0], table):
            return run(array, factor, float(offset))
    return look_up(array, table, scratch.take(array.shape))


def _scale_absolute(array: Array, factor: float, offset: float) -> Array:
    out = scratch.take(array.shape)
    return with_channels(cv2.convertScaleAbs(array, out, factor, offset - TRUNCATE))


def _scale_clamped(array: Array, factor: float, offset: float) -> Array:
    out = scratch.take(array.shape)
    return with_channels(cv2.addWeighted(array, factor, array, 0.0, offset - TRUNCATE, dst=out))


def _find_scaled(factor: float, offset: np.float32) -> Array:
    return _cut(_ALL_VALUES * np.float32(factor) + offset)[None]


def _run_brightness(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    return _scale(as_packed(pixels), float(op.values[0][row]), np.float32(0))


def _run_by_mean(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    return _scale(as_packed(pixels), *_BY_MEAN[op.name](op, split(pixels), row))


def _find_contrast(
    op: ops.ColorOp, planes: Array, row: int, mean: float | None = None
) -> tuple[float, np.float32]:
    """Return the factor and the offset that blend an image with the mean of its grayscale image.

    `mean` is that mean, if it is known.
    """
    factor, mean = float(op.values[0][row]), find_mean(planes) if mean is None else mean
    return factor, np.float32(mean) * np.float32(1 - factor)


def _find_scaled_by_mean(op: ops.ColorOp, planes: Array, row: int) -> tuple[float, np.float32]:
    """Return the factor and the offset of a change by the mean of all values in C order."""
    factor, shift = (float(values[row]) for values in op.values)
    total = cv2.sumElems(planes.reshape(len(planes), -1))[0]
    return factor, np.float32(shift * total / planes.size)


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
    np.maximum(values, _MIN, out=values)  # these two take half of the time of np.clip
    return np.minimum(values, _MAX, out=values).astype(np.uint8)


def _stretch(plane: Array) -> Array:
    """Return the table that maps the minimum of a plane to 0, and its maximum to 255."""
    low, high = cv2.minMaxLoc(plane)[:2]
    if low == high:
        return IDENTITY
    scale = np.float32(high - low) * np.float32(1 / FULL)
    return _cut((_ALL_VALUES - np.float32(low)) / scale)


def _equalize(plane: Array) -> Array:
    """Return the table that makes the histogram of a plane even, as Pillow and torchvision do."""
    histogram = cv2.calcHist([plane], [0], None, [FULL + 1], [0, FULL + 1])
    counts = histogram.reshape(-1).astype(np.int64)
    below = np.cumsum(counts) - counts
    step = (plane.size - counts[np.flatnonzero(counts)[-1]]) // FULL
    if step == 0:
        return IDENTITY
    table: NDArray[np.int64] = np.minimum((below + step // 2) // step, FULL)
    return table.astype(np.uint8)


def find_levels(
    series: Iterable[ops.Op], image: Array, row: int, may_change: bool = False
) -> Array | None:
    """Return the table that successive changes of levels make of an image.

    Args:
        series: The operations. `LEVELS` accepts each of them.
        image: The image before them, (H, W, C).
        row: The row of the sample.
        may_change: Whether changes may be made in the image itself, which must be in planes. The
            table is then of those that follow: a table needs less time where it has been read.

    Returns:
        The level that replaces each level, (256, 1) for all channels, or (256, C); None if nothing
        changes in this sample.
    """
    changes = list(_list_changes(series, row))
    # Only these read the planes.
    planes = split(image) if any(op.name in _BY_IMAGE for op in changes) else image
    levels = None
    for n, op in enumerate(changes):
        before, mean = planes, None
        if levels is not None and op.name in _BY_IMAGE:
            before = _look_up(planes, levels, planes if may_change else None)
            levels = None if may_change else levels
        if _can_estimate(changes[n:], image):
            mean = estimate_mean(before.transpose(1, 2, 0))
        table = _find_table(op, before, row, mean)
        levels = table if levels is None else _compose(levels, table)
    return levels


def change_packed(series: Iterable[ops.Op], image: Array, row: int) -> Array | None:
    """Make successive changes of levels in a packed image, (H, W, 3).

    A lookup before the image is split takes two thirds of the time of one in the planes.

    Returns:
        The new image, in scratch memory; None if there are no changes, or if one needs the planes.
    """
    changes = list(_list_changes(series, row))
    for n, op in enumerate(changes):
        if op.name in {"adjust_contrast", *_BY_PLANE} and not _can_estimate(changes[n:], image):
            return None
    changed, levels, own = image, None, None
    for op in changes:
        if levels is not None and op.name in _BY_IMAGE:
            changed = own = _look_up(changed, levels, own)
            levels = None
        mean = estimate_mean(changed) if op.name == "adjust_contrast" else None
        table = _find_table(op, changed, row, mean)
        levels = table if levels is None else _compose(levels, table)
    return None if levels is None else _look_up(changed, levels, own)


def _can_estimate(changes: Sequence[ops.ColorOp], image: Array) -> bool:
    """Return whether an estimate of the mean is exact enough for successive changes of an image."""
    first, *later = (op.name for op in changes)
    if first != "adjust_contrast" or image.shape[2] != RGB or image.size <= RGB * _EXACT_PIXELS:
        return False
    return all(name == "adjust_brightness" for name in later)


def _list_changes(series: Iterable[ops.Op], row: int) -> Iterator[ops.ColorOp]:
    """Yield the changes of a sample, without switches."""
    for op in series:
        if isinstance(op, SwitchOp):
            yield from _list_changes(op.branches[int(op.index[row])].ops, row)
        else:
            assert isinstance(op, ops.ColorOp)
            if op.rows is None or op.rows[row]:
                yield op


def _compose(first: Array, then: Array) -> Array:
    """Return the levels (256, C) after two changes, each (256, 1) or (256, C)."""
    width = then.shape[1]
    levels: Array = then[:, 0][first] if width == 1 else then[first, np.arange(width)]
    return levels


def _find_table(op: ops.ColorOp, planes: Array, row: int, mean: float | None = None) -> Array:
    """Return the table of a change: the level that replaces each level, (256, 1) or (256, C).

    `mean` is that of the grayscale image, if it is known.
    """
    if op.name in _BY_PLANE:
        return np.stack([_BY_PLANE[op.name](plane) for plane in planes], -1)
    if mean is not None:
        return _find_scaled(*_find_contrast(op, planes, row, mean)).T
    if op.name in _BY_MEAN:
        return _find_scaled(*_BY_MEAN[op.name](op, planes, row)).T
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
_BY_MEAN: dict[str, Callable[[ops.ColorOp, Array, int], tuple[float, np.float32]]] = {
    "adjust_contrast": _find_contrast,
    "scale_and_shift_by_mean": _find_scaled_by_mean,
}
_BY_IMAGE = {*_BY_MEAN, *_BY_PLANE}
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
    single(ops.ColorOp, "cv2.LUT", _run_table, _is_pointwise, needs_torchvision=True),
    make_rule("adjust_contrast", "cv2.addWeighted", _run_by_mean),
    make_rule("scale_and_shift_by_mean", "cv2.addWeighted", _run_by_mean),
    make_rule("autocontrast", "cv2.LUT", _run_table),
    make_rule("equalize", "cv2.LUT", _run_table),
]
