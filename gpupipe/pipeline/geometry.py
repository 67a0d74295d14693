"""Geometry formulas that several steps share.

All arrays are float64 NumPy. Points, sizes and windows use the last axis, (..., 2), so a formula
serves one sample and a whole batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def center_offset(inner: Any, outer: Any) -> Any:
    """Return the offset at which torchvision's center_crop cuts `inner` out of `outer` pixels.

    It is int(round((outer - inner) / 2.0)) with Python's half-to-even. It is negative if the image
    is smaller: then (inner - outer) // 2 pixels of padding come first. See
    _center_crop_compute_padding and _center_crop_compute_crop_anchor in
    torchvision/transforms/v2/functional/_geometry.py.
    """
    half = (outer - inner) / 2.0
    return np.where(half < 0, np.ceil(half), np.rint(half))


def shorter_side(size: Any, short: int, longest: int | None) -> Any:
    """Return [height, width] after torchvision's resize(short, max_size=longest).

    The shorter side becomes `short`, and the longer one int(short * longer / shorter). If the
    longer side then exceeds `longest`, both shrink until it fits.

    Args:
        size: [height, width] of the image in pixels, (..., 2).
        short: The new length of the shorter side in pixels.
        longest: The limit of the longer side in pixels; None for no limit.
    """
    shape = np.floor(size * float(short) / size.min(-1, keepdims=True))
    if longest is None:
        return shape
    most = shape.max(-1, keepdims=True)
    return np.floor(shape * np.minimum(most, float(longest)) / most)


def affine_inverse(angle: Any, scale: Any, shear_x: Any, shear_y: Any) -> Floats:
    """Return the linear part of the map from output to source coordinates, (B, 2, 2).

    It is the inverse of RSS = rotation @ shear_y @ shear_x * scale, as _get_inverse_affine_matrix
    in torchvision/transforms/functional.py has it.

    Args:
        angle: The rotation in degrees, float64 (B,).
        scale: The factor of size, float64 (B,).
        shear_x: The shear along x in degrees, float64 (B,).
        shear_y: The shear along y in degrees, float64 (B,).
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
    """Return [linear | offset], (..., 2, 3), which maps x to linear @ (x - output) + source."""
    moved = np.einsum("...ij,...j->...i", linear, output)
    linear, offset = (
        np.broadcast_arrays(linear, (source - moved)[..., None])[0],
        (source - moved)[..., None],
    )
    return np.concatenate([linear, offset], -1)


def perspective_matrix(start: Any, end: Any) -> Floats:
    """Return the map from output to source coordinates that torchvision's perspective applies.

    It maps each corner in `end` to its corner in `start`, as the coefficients of
    _get_perspective_coeffs in torchvision/transforms/functional.py do. torchvision solves eight
    equations per image. This is the closed form of Heckbert (1989, "Fundamentals of Texture Mapping
    and Image Warping", 2.2.2) through the unit square, for a whole batch. If three corners lie on
    one line, there is no such map, and the result is the identity.

    Args:
        start: The image's corners [top-left, top-right, bottom-right, bottom-left], each [x, y] in
            pixels; a rectangle from [0, 0]. float64 (..., 4, 2).
        end: Where these corners lie in the output. float64 (..., 4, 2).

    Returns:
        (..., 3, 3), with 1 as the last number.
    """
    side = (start[..., 2, :] - start[..., 0, :])[..., None]
    first, second, third, fourth = (end[..., n, :] for n in range(4))
    total = first - second + third - fourth
    right, left = second - third, fourth - third
    bottom = _cross(right, left)[..., None]
    g, h = _cross(total, left)[..., None], _cross(right, total)[..., None]
    columns = [
        (second - first) * bottom + g * second,
        (fourth - first) * bottom + h * fourth,
        first * bottom,
    ]
    rows = [np.concatenate([column[..., n, None] for column in columns], -1) for n in range(2)] + [
        np.concatenate([g, h, bottom], -1)
    ]
    # The adjugate of the matrix from the unit square to `end` is its inverse but for a factor.
    inverse = np.stack(
        [np.cross(rows[1], rows[2]), np.cross(rows[2], rows[0]), np.cross(rows[0], rows[1])], -1
    )
    matrix = np.concatenate([inverse[..., :2, :] * side, inverse[..., 2:, :]], -2)
    last = matrix[..., 2:, 2:]
    has_none = _has_three_on_a_line(start) | _has_three_on_a_line(end) | (last[..., 0, 0] == 0.0)
    none = np.broadcast_to(has_none[..., None, None], matrix.shape)
    return np.where(none, np.eye(3), matrix / np.where(none, 1.0, last))


def _has_three_on_a_line(corners: Any) -> Any:
    one, two = (np.roll(corners, -n, -2) - corners for n in (1, 2))
    return (_cross(one, two) == 0.0).any(-1)


def _cross(a: Any, b: Any) -> Any:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
