"""Which part of an image a resize looks at: NumPy, windows and sizes (..., 2) as [top, left] and
[height, width].
"""

from __future__ import annotations

from typing import Any

import numpy as np

_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_NEAREST_SHIFT = 0.5 - 2.0**-12
"""torchvision's "nearest" takes floor(x * scale), DALI's the pixel under the centre: half an output
pixel apart, in source pixels. A hair less than the half, so that where x * scale is a whole number,
rounding does not fall below it.
"""


def source_region(
    size: Any, shape: Any, region: tuple[Any, Any] | None, interpolation: str
) -> tuple[Any, Any]:
    """Corners [top, left] and [bottom, right], in pixels of an image of `size`, of a region
    (anchor, shape) of it resized to `shape`.
    """
    scale = size / shape
    anchor, extent = region or (np.zeros(2), shape)
    shift = scale * _NEAREST_SHIFT if interpolation == "nearest" else 0.0
    return anchor * scale - shift, (anchor + extent) * scale - shift


def needed_window(
    size: Any, shape: Any, region: tuple[Any, Any], interpolation: str
) -> tuple[Any, Any]:
    """The window (anchor, shape) of the source that a resize needs to make `region`: its filter
    looks beyond the edge.
    """
    scale = size / shape
    start, end = region[0] * scale, (region[0] + region[1]) * scale
    margin = np.floor(np.maximum(scale, 1.0) * _FILTER_RADIUS[interpolation]) + 2.0
    low = np.maximum(np.floor(start) - margin, 0.0)
    high = np.minimum(np.floor(end) + 1.0 + margin, size)
    return low, high - low
