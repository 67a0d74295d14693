"""Computes the part of an image that a resize reads.

All arguments are NumPy arrays (..., 2): anchors as [top, left], sizes as [height, width].
"""

from __future__ import annotations

from typing import Any

import numpy as np

_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_NEAREST_SHIFT = 0.5 - 2.0**-12
"""Shifts DALI's nearest-neighbour grid onto torchvision's, in output pixels. torchvision reads the
source pixel floor(x * scale). DALI reads the one under the centre, half an output pixel further.
The shift is 2**-12 less than the half: if x * scale is a whole number, rounding must not fall
below it.
"""


def source_region(
    size: Any, shape: Any, region: tuple[Any, Any] | None, interpolation: str
) -> tuple[Any, Any]:
    """Return the source pixels of a region of a resized image.

    Args:
        size: The size of the source image.
        shape: The size to which the whole source is resized.
        region: (anchor, shape) of the region, in pixels of the resized image; None for all of it.
        interpolation: "nearest", "bilinear" or "bicubic".

    Returns:
        The corners [top, left] and [bottom, right], in source pixels.
    """
    scale = size / shape
    anchor, extent = region or (np.zeros(2), shape)
    shift = scale * _NEAREST_SHIFT if interpolation == "nearest" else 0.0
    return anchor * scale - shift, (anchor + extent) * scale - shift


def needed_window(
    size: Any, shape: Any, region: tuple[Any, Any], interpolation: str
) -> tuple[Any, Any]:
    """Return the window of the source that a resize reads for a region of its output.

    The window includes a margin for the filter, which reads pixels beyond the region's edges.

    Args:
        size: The size of the source image.
        shape: The size to which the whole source is resized.
        region: (anchor, shape) of the region, in pixels of the resized image.
        interpolation: "nearest", "bilinear" or "bicubic".

    Returns:
        (anchor, shape) of the window, in whole source pixels.
    """
    scale = size / shape
    start, end = region[0] * scale, (region[0] + region[1]) * scale
    margin = np.floor(np.maximum(scale, 1.0) * _FILTER_RADIUS[interpolation]) + 2.0
    low = np.maximum(np.floor(start) - margin, 0.0)
    high = np.minimum(np.floor(end) + 1.0 + margin, size)
    return low, high - low
