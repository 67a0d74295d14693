"""The operations of augmentation policies, implemented in torch and with primitives.

A policy (policy.py) draws the number of an operation in `OPS` and a value for each sample:

    operation                      value
    -----------------------------  ------------------------------------------------------------
    Identity                       none
    ShearX, ShearY                 the tangent of the angle; the top left corner stays in place
    TranslateX, TranslateY         pixels to the right, or down
    TranslateXRel, TranslateYRel   the same, but as a fraction of the width, or of the height
    Rotate                         degrees, counter-clockwise, about the centre
    Brightness, Color, Contrast,   the factor; 1 leaves the image as it is
    Sharpness
    Posterize                      bits to keep, 0 to 8
    Solarize                       the threshold, 0 to 255
    SolarizeAdd                    the number, 0 to 128, to add to the values below 128
    GaussianBlur                   sigma in pixels, 0.1 to 2; the kernel covers 3 sigma
    AutoContrast, Equalize,        none
    Invert

The names are those of torchvision's and timm's policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_branches import Branch, ColorBranches, clip_to_range
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.tensors import in_float32
from gpupipe.runtime.installation import find_extension

if TYPE_CHECKING:
    from torch import Tensor

GEOMETRY = tuple("ShearX ShearY TranslateX TranslateY TranslateXRel TranslateYRel Rotate".split())
"""The operations that move pixels."""
COLORS = {
    "Brightness": "adjust_brightness",
    "Color": "adjust_saturation",
    "Contrast": "adjust_contrast",
    "Sharpness": "adjust_sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "SolarizeAdd": "solarize_add",
    "GaussianBlur": "gaussian_blur",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
}
"""The operations that change colours, with their names for `Primitives.color`."""
OPS = ("Identity", *GEOMETRY, *COLORS)
_TRANSLATIONS = [(OPS.index(f"Translate{axis}"), OPS.index(f"Translate{axis}Rel")) for axis in "XY"]
_SHEAR_X, _SHEAR_Y, _ROTATE = map(OPS.index, ("ShearX", "ShearY", "Rotate"))
_NUMBERS = (_SHEAR_X, _SHEAR_Y, _ROTATE, *_TRANSLATIONS[0], *_TRANSLATIONS[1])
_extension = find_extension()

_SIGMA = (0.1, 2.0)


@dataclass(frozen=True)
class Warping:
    """The settings of the operations that move pixels.

    Attributes:
        interpolation: "nearest" or "bilinear".
        fill: The value outside the image: one number, or one per channel. None is black.
        has_whole_shifts: Whether shifts are cut to whole pixels, as torchvision's are.
    """

    interpolation: str
    fill: tuple[float, ...] | None
    has_whole_shifts: bool


def op_numbers(names: Sequence[str]) -> NDArray[np.int32]:
    """Return the numbers of the operations called `names`: their positions in `OPS`."""
    return np.array([OPS.index(name) for name in names], np.int32)


def lower_op(
    image: Primitives,
    names: Sequence[str],
    op: NDArray[np.int32],
    value: NDArray[np.float64],
    warping: Warping,
    changes_colors: bool = True,
) -> None:
    """Apply one operation to each sample by calling primitives.

    All operations that move pixels share one branch, with a matrix per sample. If only these
    operations are drawn, sharing makes DALI on a CPU 1.12 times as fast as one branch per operation
    (1.05 to 1.23 in 40 rounds). With all operations of TrivialAugmentWide there is no clear
    difference: 1.02 (0.90 to 1.20). benchmarks/policy_branches.py measures both.

    Args:
        image: The batch.
        names: The operations that a sample may draw.
        op: The number of each sample's operation, its position in `OPS`, int32 (B,).
        value: The value of each sample's operation, float64 (B,).
        warping: The settings of the operations that move pixels.
        changes_colors: False skips the operations that change colours, as on a mask.
    """
    branch_of_op, functions, moving, blurring = _list_branches(tuple(names), changes_colors)
    others: dict[int, Branch] = {}
    if moving:
        others[moving] = partial(lower_move, op=op, value=value, warping=warping)
    if blurring:
        others[blurring] = partial(lower_blur, value=value)
    if len(functions) > 1:
        image.switch(branch_of_op[op], ColorBranches(functions, [value], others))


@cache
def _list_branches(
    names: tuple[str, ...], changes_colors: bool
) -> tuple[NDArray[np.int32], tuple[str, ...], int, int]:
    """Return the branches of `lower_op`.

    Returns:
        The branch of each operation in OPS, (len(OPS),); the function of COLOR_OPS that each branch
        calls, or "" for others; and the branches that move pixels and that blur, 0 without them.
    """
    branch_of_op, functions, blurring = np.zeros(len(OPS), np.int32), [""], 0
    if moving := [name for name in names if name in GEOMETRY]:
        branch_of_op[op_numbers(moving)] = len(functions)
        functions.append("")
    for name in names if changes_colors else ():
        if name in COLORS:
            branch_of_op[OPS.index(name)] = len(functions)
            blurring = len(functions) if name == "GaussianBlur" else blurring
            functions.append("" if name == "GaussianBlur" else COLORS[name])
    return branch_of_op, tuple(functions), int(bool(moving)), blurring


def lower_move(
    image: Primitives, op: NDArray[np.int32], value: NDArray[np.float64], warping: Warping
) -> None:
    """Move the pixels of each sample as its operation says; the arguments are as in `lower_op`."""
    size, is_rotate = image.width_height, op == _ROTATE
    angle = np.radians(np.where(is_rotate, -value, 0.0))
    linear = np.empty((len(value), 2, 2))  # geometry.affine_inverse of the angle, and a shear
    cosine, sine = np.cos(angle), np.sin(angle)
    if _extension is not None and size.shape == (len(value), 2):
        pairs = np.empty((len(value), 2)), np.empty((len(value), 2))
        floats = (value, cosine, sine, image.size)
        drawn = [np.ascontiguousarray(array, np.float64) for array in floats]
        numbers = *_NUMBERS, warping.has_whole_shifts
        _extension.policy_moves(numbers, np.ascontiguousarray(op), *drawn, (linear, *pairs))
        image.warp(linear, *pairs, warping.interpolation, warping.fill)
        return
    linear[:, 0, 0] = linear[:, 1, 1] = cosine
    linear[:, 0, 1] = np.where(op == _SHEAR_X, value, 0.0) + sine
    linear[:, 1, 0] = np.where(op == _SHEAR_Y, value, 0.0) - sine
    source = np.where(is_rotate[:, None], size / 2.0, 0.0)
    output = source + _shift(op, value, size, warping)
    image.warp(linear, source, output, warping.interpolation, warping.fill)


def lower_blur(image: Primitives, value: NDArray[np.float64]) -> None:
    """Blur all samples, each with its `value`."""
    image.color("gaussian_blur", *_color_values("GaussianBlur", value, image.width_height))


def _color_values(name: str, value: NDArray[np.float64], width_height: Any) -> tuple[Any, ...]:
    """Return the arguments of a colour function, in the order of `COLOR_OPS`, from `value`."""
    if name == "GaussianBlur":
        sigma = np.stack([np.clip(value, *_SIGMA)] * 2, -1)
        margin = np.minimum(np.ceil(3.0 * sigma), width_height - 1.0)
        return (2.0 * margin + 1.0).astype(np.int32), sigma
    return tuple(clip_to_range(COLORS[name], value))


def apply_op(
    image: Tensor, op: int, value: float, warping: Warping, changes_colors: bool = True
) -> Tensor:
    """Apply one operation to an image in torch, as torchvision's policies do.

    Args:
        image: Tensor (C, H, W).
        op: The number of the operation, its position in `OPS`.
        value: The value of the operation, such as degrees for Rotate; see the head of this module.
        warping: The settings of the operations that move pixels.
        changes_colors: False skips the operation if it changes colours, as on a mask.
    """
    name = OPS[op]
    if name in GEOMETRY:
        return in_float32(image, lambda pixels: _move(pixels, name, value, warping))
    if name == "Identity" or not changes_colors:
        return image
    size = np.array(image.shape[:-3:-1], np.float64)
    values = [v.tolist() for v in _color_values(name, np.array(value), size)]
    return color_ops.apply(COLORS[name], image, values)


def _move(image: Tensor, name: str, value: float, warping: Warping) -> Tensor:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    mode = InterpolationMode(warping.interpolation)
    fill = None if warping.fill is None else list(warping.fill)
    if name == "Rotate":
        return F.rotate(image, value, mode, fill=fill)  # type: ignore[no-any-return]
    axis = int("Y" in name)
    if name in ("ShearX", "ShearY"):
        shear = [0.0, 0.0]
        shear[axis] = math.degrees(math.atan(value))
        return F.affine(  # type: ignore[no-any-return]
            image, 0.0, [0, 0], 1.0, shear, mode, fill, [0.0, 0.0]
        )
    size = np.array(image.shape[:-3:-1], np.float64)
    shift = _shift(np.array(OPS.index(name)), np.array(value), size, warping).tolist()
    return F.affine(image, 0.0, shift, 1.0, [0.0, 0.0], mode, fill)  # type: ignore[no-any-return]


def _shift(op: Any, value: Any, width_height: Any, warping: Warping) -> NDArray[np.float64]:
    """Return the shift of each operation, [x, y] in pixels, (..., 2); 0 if it does not translate.

    With `has_whole_shifts`, shifts are rounded to float32 and then truncated, as in torchvision.
    """
    shape = np.broadcast_shapes(np.shape(op), np.shape(width_height)[:-1])  # a size may be one pair
    shift: NDArray[np.float64] = np.empty((*shape, 2))
    for axis, (pixels, relative) in enumerate(_TRANSLATIONS):
        of_size = np.where(op == relative, value, 0.0) * width_height[..., axis]
        shift[..., axis] = np.where(op == pixels, value, 0.0) + of_size
    return (
        np.trunc(shift.astype(np.float32)).astype(np.float64) if warping.has_whole_shifts else shift
    )
