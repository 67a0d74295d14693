"""Limits what a program decodes and computes to the pixels that are needed.

Successive crops become one, and so do flips. So the canvas of a random_zoom_out is never made:

    CropOp(fill=...), CropOp    merge_ops   -> CropOp(fill=...)

Crops without a fill and flips come before conversions of values, with which kernels deliver:

    ToDtypeOp, CropOp, FlipOp   merge_ops   -> CropOp, FlipOp, ToDtypeOp

A crop, or a warp that enlarges, needs only a part of the image. The extension `gpupipe._jpeg`
decodes that part alone. Its pixels equal those of a decode of the whole image:

    DecodeOp, CropOp            add_windows -> DecodeOp(windows=...), CropOp
    DecodeOp, ColorOp, CropOp               -> DecodeOp(windows=...), CropOp, ColorOp, CropOp

The decoded array still has the size of the whole image. Its pixels outside the window are
undefined. The colours of those are not changed either, except in samples in which a change depends
on the whole image, as adjust_contrast does.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.program import SwitchOp
from gpupipe.runtime.installation import find_extension

_Corner = NDArray[np.float64]
"""[y, x] of each sample, (B, 2), in pixels."""
_MARGIN = 2
"""Pixels that are added on each side of a computed window, since kernels round coordinates."""
_FAR = 1e9
"""A coordinate in pixels that is outside every image. Computed corners are clipped to it."""
_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_OF_ONE_PIXEL = {"adjust_saturation", "adjust_hue", "permute_channels"}
"""Functions of COLOR_OPS whose result depends on all channels of one pixel, but on no
other pixel.
"""
_extension, _jpeg = find_extension(), find_extension("_jpeg")


def limit_windows(traced: Sequence[ops.Op], size: NDArray[np.float64]) -> list[ops.Op]:
    """Return operations with the same result that decode and compute only what is needed.

    Args:
        traced: Successive operations. The output of each goes to the next one alone.
        size: [height, width] of the decoded images, (B, 2).
    """
    return add_windows(merge_ops(traced), size)


def merge_ops(traced: Sequence[ops.Op]) -> list[ops.Op]:
    """Return the operations with one crop in place of two, and one flip in place of two.

    They come before to_dtype and normalize, which change each value alone.

    Two crops become one only if the first has a fill and the second lies inside the first's result.
    Outside of it, the second shows its own fill, and no pixels that the first cut away.
    """
    merged: list[ops.Op] = []
    for op in traced:
        at = len(merged)
        if isinstance(op, ops.FlipOp) or (isinstance(op, ops.CropOp) and op.fill is None):
            while at and isinstance(merged[at - 1], (ops.ToDtypeOp, ops.NormalizeOp)):
                at -= 1
        spec = op.spec if at == len(merged) else replace(op.spec, dtype=merged[at].spec.dtype)
        moved = op if spec is op.spec else replace(op, spec=spec)
        joined = _join(merged[at - 1], moved) if at else None
        if joined is None:
            merged.insert(at, moved)
        else:
            merged[at - 1] = joined
    return merged


def _join(first: ops.Op, op: ops.Op) -> ops.Op | None:
    """Return one operation that does the work of both; None if no single one can."""
    if isinstance(op, ops.FlipOp) and isinstance(first, ops.FlipOp):
        return replace(op, earlier_steps=first.steps, flags=first.flags ^ op.flags)
    if isinstance(op, ops.CropOp) and isinstance(first, ops.CropOp) and first.fill is not None:
        inner, outer = op.windows, first.windows
        if ops.are_inside(inner, outer[:, 2:]):
            windows = np.concatenate([outer[:, :2] + inner[:, :2], inner[:, 2:]], -1)
            return ops.CropOp(op.step, first.spec, windows, first.fill, earlier_steps=first.steps)
    return None


def add_windows(traced: Sequence[ops.Op], size: NDArray[np.float64]) -> list[ops.Op]:
    """Return the operations, so that a DecodeOp decodes only what a crop or warp after it reads.

    See `limit_windows` for the arguments.
    """
    if _jpeg is None:
        return list(traced)
    match list(traced[:3]):
        case [ops.DecodeOp() as decode, ops.CropOp() as crop, *_]:
            return [_with_windows(decode, _limit_crop(crop, size)), *traced[1:]]
        case [ops.DecodeOp() as decode, ops.ResizeOp() as resize, ops.CropOp() as crop]:
            first, end = _find_resized(size / resize.sizes, resize, crop)
        case [ops.DecodeOp() as decode, ops.WarpOp() as warp, *_]:
            first, end = _find_warped(warp)
        case _:
            return _add_windows_before_colors(traced, size)
    return [_with_windows(decode, _limit(first, end, size)), *traced[1:]]


def _limit_crop(crop: ops.CropOp, size: NDArray[np.float64]) -> ops.Rows:
    """Return the windows of a crop, as far as they are in the image."""
    if _extension is None:
        return _limit(*_find_edges(crop), size)
    windows = np.empty((len(size), 4), np.int64)
    _extension.limit_windows(crop.windows, np.ascontiguousarray(size), windows)
    return windows


def _limit(first: _Corner, end: _Corner, size: NDArray[np.float64]) -> ops.Rows:
    """Return the windows from `first` to `end`, as far as they are in the image."""
    first, end = np.maximum(first, 0.0), np.minimum(end, size)
    is_inside = (end > first).all(-1, keepdims=True)  # where it is not, decode the whole image
    first, end = np.where(is_inside, first, 0.0), np.where(is_inside, end, size)
    return np.concatenate([first, end - first], -1).astype(np.int64)


def _with_windows(decode: ops.DecodeOp, windows: ops.Rows) -> ops.DecodeOp:
    return ops.DecodeOp(decode.step, decode.spec, decode.options, windows, decode.sizes)


def _add_windows_before_colors(traced: Sequence[ops.Op], size: NDArray[np.float64]) -> list[ops.Op]:
    """Return the operations of `add_windows` for changes of colours between decode and crop."""
    if not traced or not isinstance(decode := traced[0], ops.DecodeOp):
        return list(traced)
    is_whole, count = np.zeros(len(size), bool), 1
    for op in traced[1:]:
        needs_whole = _find_whole(op)
        if needs_whole is None:
            break
        is_whole |= needs_whole
        count += 1
    crop = traced[count] if count < len(traced) else None
    if not isinstance(crop, ops.CropOp):
        return list(traced)
    if crop.fill is None and not ops.are_inside(crop.windows, size.astype(np.int64)):
        return list(traced)  # the kernel of the crop raises the error
    windows = _limit_crop(crop, size)
    windows[is_whole, :2], windows[is_whole, 2:] = 0, size[is_whole]
    before = ops.CropOp(crop.step, traced[1].spec, windows, None)
    shifted = crop.windows.copy()
    shifted[:, :2] -= windows[:, :2]
    changes, crop = traced[1:count], crop.with_windows(shifted)
    return [_with_windows(decode, windows), before, *changes, crop, *traced[count + 1 :]]


def _find_whole(op: ops.Op) -> NDArray[np.bool_] | bool | None:
    """Return for which samples a change of colours depends on more than the pixel that it changes.

    Returns:
        bool (B,), or one for all; None if the operation is no change of colours.
    """
    if isinstance(op, ops.ColorMatrixOp):
        return False
    if isinstance(op, ops.ColorOp):
        return not _is_of_one_pixel(op.name) and (op.rows is None or op.rows)
    if isinstance(op, ops.ChooseColorOp):
        of_names = np.array([not _is_of_one_pixel(name) for name in op.names])
        needs_whole: NDArray[np.bool_] = of_names[op.index]
        return needs_whole if op.rows is None else needs_whole & op.rows
    if not isinstance(op, SwitchOp):
        return None
    is_whole = np.zeros(len(op.index), bool)
    for n, branch in enumerate(op.branches):
        for inner in branch.ops:
            of_inner = _find_whole(inner)
            if of_inner is None:
                return None
            is_whole |= of_inner & (op.index == n)
    return is_whole


def _is_of_one_pixel(name: str) -> bool:
    return not name or name in _OF_ONE_PIXEL or COLOR_OPS[name].is_pointwise


def _find_edges(crop: ops.CropOp) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the windows of a crop."""
    windows = crop.windows.astype(np.float64)
    return windows[:, :2], windows[:, :2] + windows[:, 2:]


def _find_resized(
    scale: NDArray[np.float64], resize: ops.ResizeOp, crop: ops.CropOp
) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the pixels that a resize reads for a crop.

    `crop` cuts the output of `resize`. `scale` is the input size over the output size, (B, 2).
    """
    first, end = _find_edges(crop)
    reach = np.ceil(np.maximum(scale, 1.0) * _FILTER_RADIUS[resize.interpolation]) + _MARGIN
    return np.floor(first * scale) - reach, np.ceil(end * scale) + reach


def _find_warped(warp: ops.WarpOp) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the pixels that a warp reads, with a margin."""
    bottom, right = warp.sizes.T - 1.0
    none, one = np.zeros_like(right), np.ones_like(right)
    corners = np.array([[none, right, none, right], [none, none, bottom, bottom], [one] * 4])
    points = np.einsum("bij,jkb->bik", warp.matrices, corners)[:, ::-1]  # (B, 2, 4), y before x
    points = np.clip(points, -_FAR, _FAR)
    end = np.ceil(points.max(-1)) + 1 + _FILTER_RADIUS[warp.interpolation] + _MARGIN
    return np.floor(points.min(-1)) - _MARGIN, end
