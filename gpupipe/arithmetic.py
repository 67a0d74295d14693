"""The few functions that a step's formula needs, for NumPy values and for DALI DataNodes alike.

All numbers are float64 on both sides, so that a formula rounds the same way whether DALI or NumPy evaluates it.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def is_node(x: Any) -> bool:
    """Whether x is a DALI DataNode (asked without importing DALI)."""
    return type(x).__module__.startswith("nvidia.dali")


def floor(x: Any) -> Any:
    """The largest whole number that is not above x."""
    if not is_node(x):
        return np.floor(x)
    from nvidia.dali import math as dali_math

    return dali_math.floor(x)


def round_half_up(x: Any) -> Any:
    """The nearest integer. Python's round() differs only at an exact half, which no continuous draw hits."""
    return floor(x + 0.5)


def sqrt(x: Any) -> Any:
    """The square root."""
    if not is_node(x):
        return np.sqrt(x)
    from nvidia.dali import math as dali_math

    return dali_math.sqrt(x)


def minimum(a: Any, b: Any) -> Any:
    """The lesser of the two, element by element."""
    if not (is_node(a) or is_node(b)):
        return np.minimum(a, b)
    from nvidia.dali import math as dali_math

    return dali_math.min(a, b)


def maximum(a: Any, b: Any) -> Any:
    """The greater of the two, element by element."""
    if not (is_node(a) or is_node(b)):
        return np.maximum(a, b)
    from nvidia.dali import math as dali_math

    return dali_math.max(a, b)


def as_number(truth: Any) -> Any:
    """Truth values as float64 0 and 1."""
    return cast(truth, "float64")


def cast(x: Any, dtype: str) -> Any:
    """x as NumPy's or DALI's `dtype`, named as in NumPy."""
    if not is_node(x):
        return np.asarray(x, dtype)
    from nvidia.dali import fn

    return fn.cast(x, dtype=dali_type(dtype))


def stack(*values: Any) -> Any:
    """Numbers side by side, as a vector."""
    if not any(is_node(v) for v in values):
        return np.stack(values)
    from nvidia.dali import fn

    return fn.stack(*values)


def reduce(how: str, x: Any, axis: int) -> Any:
    """`how` ("min", "max") over one axis of numbers that float32 holds exactly: DALI reduces in float32."""
    if not is_node(x):
        return getattr(np, how)(x, axis=axis)
    from nvidia.dali import fn

    return getattr(fn.reductions, how)(cast(x, "float32"), axes=[axis])


def take(x: Any, index: Any) -> Any:
    """x[index] along the first axis, where index is a whole number that may differ from sample to sample."""
    return x[cast(index, "int32")]


def constant(like: Any, values: Any) -> Any:
    """The values as a float64 array of the kind of `like`: a DataNode or a NumPy array."""
    array = np.array(values, np.float64)
    return constant_node(array) if is_node(like) else array


def constant_node(values: Any) -> Any:
    """A float64 DataNode. DALI 2.4 knows no float64 constants, so what float32 cannot hold is added in parts, without loss."""
    from nvidia.dali import types

    array = np.array(values, np.float64)
    part = array.astype(np.float32)
    node = cast(types.Constant(part), "float64")
    rest = array - part
    return node + constant_node(rest) if rest.any() else node


def vector(like: Any, *values: float) -> Any:
    """The values as a float64 vector of the kind of `like`."""
    return constant(like, values)


def dali_type(dtype: str) -> Any:
    """DALI's type constant for a NumPy dtype name."""
    from nvidia.dali import types

    return {
        "uint8": types.UINT8, "int32": types.INT32, "int64": types.INT64,
        "float16": types.FLOAT16, "float32": types.FLOAT, "float64": types.FLOAT64,
    }[dtype]  # fmt: skip


def center_offset(inner: Any, outer: Any) -> Any:
    """Where torchvision's center_crop puts a window of `inner` pixels in `outer` pixels; negative where it must pad.

    Inside, int(round((outer - inner) / 2.0)) with Python's half-to-even; outside, padding of (inner - outer) // 2 before
    (torchvision/transforms/v2/functional/_geometry.py, _center_crop_compute_padding and _center_crop_compute_crop_anchor).
    """
    spare = outer - inner
    half = floor(spare * 0.5)
    odd = spare - half * 2.0
    half_is_odd = half - floor(half * 0.5) * 2.0
    return half + odd * maximum(half_is_odd, as_number(spare < 0.0))


def shorter_side(size: Any, short: int, longest: int | None) -> Any:
    """[height, width] after torchvision's resize(short, max_size=longest) of an image of `size` = [height, width].

    The short side becomes `short` and the long one int(short * long / short_before); then both shrink until the long one fits.
    """
    least = minimum(size[0], size[1])
    shape = floor(size * float(short) / least)
    if longest is None:
        return shape
    most = maximum(shape[0], shape[1])
    return floor(shape * minimum(most, float(longest)) / most)


def affine_inverse(angle: Any, scale: Any, shear_x: Any, shear_y: Any) -> Any:
    """The 2x2 part of the matrix from output to source coordinates; float64 arrays (B,) in degrees and ratios -> (B, 2, 2).

    torchvision/transforms/functional.py, _get_inverse_affine_matrix: the inverse of RSS = rotation @ shear_y @ shear_x * scale.
    """
    rot, sx, sy = (np.radians(x) for x in (angle, shear_x, shear_y))
    a = np.cos(rot - sy) / np.cos(sy)
    b = -np.cos(rot - sy) * np.tan(sx) / np.cos(sy) - np.sin(rot)
    c = np.sin(rot - sy) / np.cos(sy)
    d = -np.sin(rot - sy) * np.tan(sx) / np.cos(sy) + np.cos(rot)
    return np.stack([np.stack([d, -b], -1), np.stack([-c, a], -1)], -2) / np.asarray(scale)[..., None, None]
