"""Sizes, margins and matrices that several steps share.

All arrays are float64 NumPy. Points, sizes and windows have the shape (..., 2), so the same formula
works for one sample and for a whole batch. Sizes and margins in YAML have short forms:
`expand_sides` and `expand_margins` expand them for the spatial axes of an input.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.spec import Spec
from gpupipe.errors import counted
from gpupipe.pipeline.spec_checks import count_spatial_axes
from gpupipe.pipeline.step import SampleIncompatibleError, StepIncompatibleError

Floats = NDArray[np.float64]

_WINDOW_FORMS = {
    1: "one number",
    2: "one number, or [height, width]",
    3: "one number, or [depth, height, width]",
}
_MARGIN_FORMS = {
    1: "one number, or [before, after]",
    2: "one number, [left and right, top and bottom], or [left, top, right, bottom]",
    3: "one number, or [left, top, front, right, bottom, back]",
}


def expand_sides(name: str, size: tuple[int, ...], input_spec: Spec) -> tuple[int, ...]:
    """Expand a window size to one number per spatial axis of the input.

    Args:
        name: The parameter's name, for the message.
        size: The parameter's value, a field_types.Window.
        input_spec: The step's input.

    Raises:
        StepIncompatibleError: If the count of numbers does not match the axes.
    """
    axes = count_spatial_axes(input_spec)
    written = getattr(size, "written", size)
    if len(written) not in (1, axes):
        raise _misfit(name, written, input_spec, _WINDOW_FORMS[axes])
    return tuple(written) * (axes // len(written))


def expand_margins(name: str, margins: tuple[int, ...], input_spec: Spec) -> tuple[int, ...]:
    """Expand a padding to one number before and one after each spatial axis.

    The order is torchvision's: [left, top, right, bottom] for an image, and [left, top, front,
    right, bottom, back] for a volume.

    Args:
        name: The parameter's name, for the message.
        margins: The parameter's value, a field_types.Padding.
        input_spec: The step's input.

    Raises:
        StepIncompatibleError: If the count of numbers does not match the axes.
    """
    axes = count_spatial_axes(input_spec)
    written = tuple(getattr(margins, "written", margins))
    if len(written) == 1:
        return written * (2 * axes)
    if axes == 2 and len(margins) == 4:
        return tuple(margins)
    if len(written) != 2 * axes:
        raise _misfit(name, written, input_spec, _MARGIN_FORMS[axes])
    return written


def before_and_after(margins: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Split an image's margins, in torchvision's order, into [top, left] and [bottom, right]."""
    both = np.array(margins, np.float64).reshape(2, -1)[:, ::-1]
    return both[0], both[1]


def check_mirror(mode: str, before: Floats, after: Floats, size: Sequence[int]) -> None:
    """Raise SampleIncompatibleError if an image has too few pixels to mirror them in a border.

    Args:
        mode: The step's padding mode; only "reflect" and "symmetric" mirror pixels.
        before: [top, left] pixels to add.
        after: [bottom, right] pixels to add.
        size: [height, width] of the image in pixels.
    """
    room = np.array(size) - (mode == "reflect")
    if mode in ("reflect", "symmetric") and (np.maximum(before, after) > room).any():
        margin = _write_size(np.maximum(before, after))
        raise SampleIncompatibleError(
            f"{mode} cannot add {margin} pixels to an image of {_write_size(size)}"
        )


def describe_small(operation: str, size: Sequence[int], min_size: Sequence[int]) -> str:
    """Return the message that `size` is below `min_size`, both [height, width] in pixels."""
    needed, has = _write_size(min_size), _write_size(size)
    return f"{operation} needs at least {needed} pixels, but the image has {has}"


def _write_size(size: Any) -> str:
    return "x".join(str(int(side)) for side in size)


def describe_small_image(size: Sequence[int], window: Sequence[int]) -> str:
    """Return the message that an image of `size` is smaller than the window of a crop."""
    return (
        f"{describe_small('the crop', size, window)}: write a smaller size, resize first, or pad "
        "(random_crop: pad_if_needed: true)"
    )


def _misfit(
    name: str, written: tuple[int, ...], input_spec: Spec, form: str
) -> StepIncompatibleError:
    return StepIncompatibleError(
        f"{name} has {counted(len(written), 'number')}, but the axes of space are "
        f"{', '.join(input_spec.space)} (layout {input_spec.layout}): write {form}"
    )


def draw_between(bounds: tuple[Any, Any], u: Floats) -> Floats:
    """Map uniform draws `u` in [0, 1) linearly to `bounds`: (min, max), numbers or arrays."""
    low, high = bounds
    numbers: Floats = low + u * (high - low)
    return numbers


def center_offset(inner: Any, outer: Any) -> Any:
    """Return the offset at which torchvision's center_crop cuts `inner` out of `outer` pixels.

    The offset is int(round((outer - inner) / 2.0)); Python rounds a half to the even neighbour. If
    the image is smaller than the crop, the offset is negative: torchvision first pads the image by
    (inner - outer) // 2. See _center_crop_compute_padding and _center_crop_compute_crop_anchor in
    torchvision/transforms/v2/functional/_geometry.py.
    """
    half = (outer - inner) / 2.0
    return np.where(half < 0, np.ceil(half), np.rint(half))


def shorter_side(size: Any, short: int, longest: int | None) -> Any:
    """Return [height, width] after torchvision's resize(short, max_size=longest).

    The shorter side becomes `short`, and the longer one int(short * longer / shorter). If the
    longer side then exceeds `longest`, both shrink until it fits, but to no less than 1 pixel.

    Args:
        size: [height, width] of the image in pixels, (..., 2).
        short: The new length of the shorter side in pixels.
        longest: The limit of the longer side in pixels; None for no limit.
    """
    shorter = np.minimum.reduce(size, -1, keepdims=True)  # size.min() is a function of Python
    shape = np.floor(size * float(short) / shorter)
    if longest is None:
        return shape
    longer = shape.max(-1, keepdims=True)
    return np.maximum(np.floor(shape * np.minimum(longer, float(longest)) / longer), 1.0)


def longer_side(size: Any, longest: Any) -> Any:
    """Return [height, width] after torchvision's resize(None, max_size=longest).

    The longer side becomes `longest`, and the shorter one int(longest * shorter / longer), but at
    least 1.

    Args:
        size: [height, width] of the image in pixels, (..., 2).
        longest: The new length of the longer side in pixels.
    """
    return np.maximum(np.floor(size * float(longest) / size.max(-1, keepdims=True)), 1.0)


def affine_inverse(angle: Any, scale: Any, shear_x: Any, shear_y: Any) -> Floats:
    """Return the linear part (B, 2, 2) of an affine map from output to source coordinates.

    The result is the inverse of RSS = rotation @ shear_y @ shear_x * scale. Source:
    _get_inverse_affine_matrix in torchvision/transforms/functional.py.

    Args:
        angle: The rotation in degrees, float64 (B,).
        scale: The factor by which the image is enlarged, float64 (B,).
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
    """Return the matrix (..., 2, 3) of the affine map x -> linear @ (x - output) + source.

    `linear` has the shape (..., 2, 2). `source` and `output` are points, (..., 2).
    """
    offset = source - np.einsum("...ij,...j->...i", linear, output)
    matrix = np.empty((*offset.shape, 3))
    matrix[..., :2], matrix[..., 2] = linear, offset
    return matrix


def perspective_matrix(start: Any, end: Any) -> Floats:
    """Return the map from output to source coordinates that torchvision's perspective applies.

    It maps each corner in `end` to its corner in `start`, as the coefficients of
    _get_perspective_coeffs in torchvision/transforms/functional.py do. torchvision solves eight
    equations per image. This function instead computes the closed form of Heckbert (1989,
    "Fundamentals of Texture Mapping and Image Warping", 2.2.2) for a whole batch. If three corners
    lie on one line, no perspective map exists, and the result is the identity.

    Args:
        start: The image's corners [top-left, top-right, bottom-right, bottom-left], each [x, y] in
            pixels. They form a rectangle, whose first corner is [0, 0]. float64 (..., 4, 2).
        end: Where these corners lie in the output. float64 (..., 4, 2).

    Returns:
        Matrices (..., 3, 3), each with 1 as its last coefficient.
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
