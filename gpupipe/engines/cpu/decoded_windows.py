"""Finds the part of an image that the steps after `decode` need, and decodes that part alone.

A crop needs a part, and so does a warp that enlarges the image. The extension `gpupipe._jpeg`
decodes it, to the pixels of a decode of the whole image. The image keeps its size: pixels outside
of the window have any value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.cpu.ops import CropOp, DecodeOp, Op, ResizeOp, WarpOp
from gpupipe.runtime.compiled_extension import find_extension

_MARGIN = 2
"""Pixels beside those that the arithmetic names: kernels round coordinates."""
_FAR = 1e9
"""In pixels: outside of every image."""
_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_extension = find_extension("_jpeg")


def add_windows(ops: Sequence[Op], size: NDArray[np.float64]) -> list[Op]:
    """Return operations whose `decode` has the windows of a crop or a warp that follows it.

    Args:
        ops: Operations that run one after the other. Nothing else uses the pixels between them.
        size: [height, width] of the decoded images, (B, 2).
    """
    if _extension is None:
        return list(ops)
    match list(ops[:3]):
        case [DecodeOp() as decode, CropOp() as crop, *_]:
            windows = np.array(crop.windows, np.float64)
        case [DecodeOp() as decode, ResizeOp() as resize, CropOp() as crop]:
            windows = _find_source(size, resize, np.array(crop.windows, np.float64))
        case [DecodeOp() as decode, WarpOp() as warp, *_]:
            windows = _find_warped(warp)
        case _:
            return list(ops)
    clipped = _clip(windows, size).astype(np.int64).tolist()
    return [replace(decode, windows=clipped), *ops[1:]]


def _find_source(
    size: NDArray[np.float64], resize: ResizeOp, window: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the window that a resize reads for a window of its output, with a margin."""
    scale = size / np.array(resize.sizes, np.float64)
    reach = np.ceil(np.maximum(scale, 1.0) * _FILTER_RADIUS[resize.interpolation]) + _MARGIN
    first = np.floor(window[:, :2] * scale) - reach
    end = np.ceil((window[:, :2] + window[:, 2:]) * scale) + reach
    return np.concatenate([first, end - first], -1)


def _find_warped(warp: WarpOp) -> NDArray[np.float64]:
    """Return the window that a warp reads, with a margin."""
    bottom, right = np.array(warp.sizes, np.float64).T - 1.0
    none, one = np.zeros_like(right), np.ones_like(right)
    corners = np.array([[none, right, none, right], [none, none, bottom, bottom], [one] * 4])
    points = np.einsum("bij,jkb->bik", warp.matrices, corners)[:, ::-1]  # (B, 2, 4), y before x
    points = np.clip(points, -_FAR, _FAR)
    first = np.floor(points.min(-1)) - _MARGIN
    end = np.ceil(points.max(-1)) + 1 + _FILTER_RADIUS[warp.interpolation] + _MARGIN
    return np.concatenate([first, end - first], -1)


def _clip(window: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the parts of windows inside the image; the whole image if there is none."""
    first = np.maximum(window[:, :2], 0.0)
    end = np.minimum(window[:, :2] + window[:, 2:], size)
    is_inside = (end > first).all(-1, keepdims=True)
    first, end = np.where(is_inside, first, 0.0), np.where(is_inside, end, size)
    return np.concatenate([first, end - first], -1)
