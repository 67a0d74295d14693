"""Finds the part of an image that the steps after `decode` need, and decodes that part alone.

A crop needs a part, and so does a warp that enlarges the image. The extension `gpupipe._jpeg`
decodes it, to the pixels of a decode of the whole image. The image keeps its size: pixels outside
of the window have any value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.cpu.program import Call
from gpupipe.runtime.compiled_extension import find_extension

_MARGIN = 2
"""Pixels beside those that the arithmetic names: kernels round coordinates."""
_FAR = 1e9
"""In pixels: outside of every image."""
_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_extension = find_extension("_jpeg")


def add_windows(calls: Sequence[Call], size: NDArray[np.float64]) -> list[Call]:
    """Return calls whose `decode` has the window of each sample, if a crop or a warp follows it.

    Args:
        calls: Calls that run one after the other. Nothing else uses the pixels between them.
        size: [height, width] of the decoded images, (B, 2).

    Returns:
        The calls. The rows of `decode` are [top, left, height, width] in pixels.
    """
    if _extension is None:
        return list(calls)
    names = [call.primitive for call in calls[:3]]
    if names[:2] == ["decode", "crop"]:
        window = np.array(calls[1].rows, np.float64)
    elif names == ["decode", "resize", "crop"]:
        window = _find_source(size, calls[1], np.array(calls[2].rows, np.float64))
    elif names[:2] == ["decode", "warp"]:
        window = _find_warped(calls[1])
    else:
        return list(calls)
    rows = _clip(window, size).astype(np.int64).tolist()
    return [replace(calls[0], rows=rows), *calls[1:]]


def _find_source(size: Any, resize: Call, window: Any) -> NDArray[np.float64]:
    """Return the window that a resize reads for a window of its output, with a margin."""
    scale = size / np.array(resize.rows, np.float64)
    reach = np.ceil(np.maximum(scale, 1.0) * _FILTER_RADIUS[resize.options[0]]) + _MARGIN
    first = np.floor(window[:, :2] * scale) - reach
    end = np.ceil((window[:, :2] + window[:, 2:]) * scale) + reach
    return np.concatenate([first, end - first], -1)


def _find_warped(warp: Call) -> NDArray[np.float64]:
    """Return the window that a warp reads, with a margin."""
    matrices = np.array([matrix for matrix, _ in warp.rows], np.float64)
    bottom, right = np.array([size for _, size in warp.rows], np.float64).T - 1.0
    none, one = np.zeros_like(right), np.ones_like(right)
    corners = np.array([[none, right, none, right], [none, none, bottom, bottom], [one] * 4])
    points = np.einsum("bij,jkb->bik", matrices, corners)[:, ::-1]  # (B, 2, 4), y before x
    points = np.clip(points, -_FAR, _FAR)
    first = np.floor(points.min(-1)) - _MARGIN
    end = np.ceil(points.max(-1)) + 1 + _FILTER_RADIUS[warp.options[0]] + _MARGIN
    return np.concatenate([first, end - first], -1)


def _clip(window: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the parts of windows inside the image; the whole image if there is none."""
    first = np.maximum(window[:, :2], 0.0)
    end = np.minimum(window[:, :2] + window[:, 2:], size)
    is_inside = (end > first).all(-1, keepdims=True)
    first, end = np.where(is_inside, first, 0.0), np.where(is_inside, end, size)
    return np.concatenate([first, end - first], -1)
