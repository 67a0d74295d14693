"""Formulas that several steps share.

All is float64 NumPy. Points, sizes and windows lie on the last axis, (..., 2), so that a formula
serves one sample and a batch alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def round_half_up(x: Any) -> Any:
    """The nearest integer. Python's round() differs only at an exact half, which no continuous draw
    hits.
    """
    return np.floor(x + 0.5)


def center_offset(inner: Any, outer: Any) -> Any:
    """Where torchvision's center_crop puts a window of `inner` pixels in `outer` pixels; negative
    where it must pad.

    Inside, int(round((outer - inner) / 2.0)) with Python's half-to-even; outside, padding of (inner
    - outer) // 2 before (torchvision/transforms/v2/functional/_geometry.py,
    _center_crop_compute_padding and _center_crop_compute_crop_anchor).
    """
    half = (outer - inner) / 2.0
    return np.where(half < 0, np.ceil(half), np.rint(half))


def shorter_side(size: Any, short: int, longest: int | None) -> Any:
    """[height, width] after torchvision's resize(short, max_size=longest) of an image of `size` =
    [height, width].

    The short side becomes `short` and the long one int(short * long / short_before); then both
    shrink until the long one fits.
    """
    shape = np.floor(size * float(short) / size.min(-1, keepdims=True))
    if longest is None:
        return shape
    most = shape.max(-1, keepdims=True)
    return np.floor(shape * np.minimum(most, float(longest)) / most)


def affine_inverse(angle: Any, scale: Any, shear_x: Any, shear_y: Any) -> Floats:
    """The 2x2 part of the matrix from output to source coordinates; float64 arrays (B,) in degrees
    and ratios -> (B, 2, 2).

    torchvision/transforms/functional.py, _get_inverse_affine_matrix: the inverse of RSS = rotation
    @ shear_y @ shear_x * scale.
    """
    rot, sx, sy = (np.radians(x) for x in (angle, shear_x, shear_y))
    a = np.cos(rot - sy) / np.cos(sy)
    b = -np.cos(rot - sy) * np.tan(sx) / np.cos(sy) - np.sin(rot)
    c = np.sin(rot - sy) / np.cos(sy)
    d = -np.sin(rot - sy) * np.tan(sx) / np.cos(sy) + np.cos(rot)
    inverse: Floats = (
        np.stack([np.stack([d, -b], -1), np.stack([-c, a], -1)], -2)
        / np.asarray(scale)[..., None, None]
    )
    return inverse


def affine_matrix(linear: Any, source: Any, output: Any) -> Floats:
    """[linear | offset], (..., 2, 3): the output point x lies at linear @ (x - output) + source."""
    moved = np.einsum("...ij,...j->...i", linear, output)
    linear, offset = (
        np.broadcast_arrays(linear, (source - moved)[..., None])[0],
        (source - moved)[..., None],
    )
    return np.concatenate([linear, offset], -1)
