"""The table of torchvision's colour functions in DALI, and how a function is applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvidia.dali import fn, types

from gpupipe.engines.dali import color, color_statistics, filters
from gpupipe.engines.dali.color import Operators

FUNCTIONS: dict[str, Callable[..., Operators]] = {
    function.__name__: function
    for function in (
        color.invert,
        color.posterize,
        color.solarize,
        color.adjust_brightness,
        color.adjust_saturation,
        color.adjust_hue,
        color.permute_channels,
        color_statistics.adjust_contrast,
        color_statistics.autocontrast,
        color_statistics.equalize,
        filters.adjust_sharpness,
        filters.gaussian_blur,
        filters.jpeg,
    )
}
"""The functions by torchvision's name; `COLOR_OPS` in pipeline/primitives.py documents them."""


def apply(make: Callable[..., Any], pixels: Any, nodes: list[Any], dtype: str) -> Any:
    """Apply `make` to pixels of layout HWC; float16 is computed in float32, and rounded once."""
    if dtype == "float16":
        return fn.cast(make(fn.cast(pixels, dtype=types.FLOAT), *nodes), dtype=types.FLOAT16)
    return make(pixels, *nodes)
