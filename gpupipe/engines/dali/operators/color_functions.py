"""The functions of `COLOR_OPS` in DALI: operators of their own, or the formula of their row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.engines.dali.operators import color, color_statistics, filters
from gpupipe.engines.dali.operators.color import Operators, PixelFormat
from gpupipe.pipeline.geometry import describe_small
from gpupipe.pipeline.spec_checks import count_channels
from gpupipe.pipeline.step import NoLoweringError, SampleIncompatibleError, Spec

FUNCTIONS: dict[str, Callable[..., Operators]] = {
    function.__name__: function
    for function in (
        color.invert,
        color.posterize,
        color.solarize,
        color.solarize_add,
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
"""The functions that have operators of their own, by name; see augment/color_ops.py."""


def find_operators(
    op: str,
    spec: Spec,
    device: Literal["cpu", "gpu"],
    values: Sequence[Any],
    size: Any,
    present: NDArray[np.bool_],
) -> tuple[Callable[..., Any], tuple[NDArray[Any], ...]]:
    """Return the operators of a function, and the arrays that they are fed.

    Args:
        op: The function's name.
        spec: The spec of the images.
        device: The device of the operators.
        values: The function's values, arrays (B, ...).
        size: [height, width] of each image, (B, 2) or (2,); None to skip the check of it.
        present: Which samples of the batch the function works on, (B,).

    Raises:
        NoLoweringError: If there is no such function.
        SampleIncompatibleError: If an image is smaller than the function takes.
    """
    row = COLOR_OPS.get(op)
    function = FUNCTIONS.get(op) or (row and row.formula and partial(color.compute, row.formula))
    if not function:
        raise NoLoweringError(f"the color function '{op}' has no DALI operators")
    dtype = "float32" if spec.dtype == "float16" else spec.dtype
    image = PixelFormat(dtype, device, count_channels(spec) or 1)
    make, arrays, least = function(image, *(np.asarray(v) for v in values))
    if least is not None and size is not None:
        small = np.flatnonzero((size < least).any(-1) & present)
        if len(small):
            sides = np.broadcast_to(size, least.shape)[small[0]]
            raise SampleIncompatibleError(describe_small(op, sides, least[small[0]]))
    return make, arrays


def apply(make: Callable[..., Any], pixels: Any, nodes: list[Any], dtype: str) -> Any:
    """Apply `make` to pixels of layout HWC; float16 is computed in float32, and rounded once."""
    if dtype == "float16":
        return fn.cast(make(fn.cast(pixels, dtype=types.FLOAT), *nodes), dtype=types.FLOAT16)
    return make(pixels, *nodes)
