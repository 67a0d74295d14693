"""A table of the functions that change colours, with one row per function, for every back end.

A row has the arguments of a function, its dtypes, and what it computes. `apply` is the reference
implementation. The engines have kernels and operators of their own for most functions. They derive
the other functions from their rows: the CPU engine makes a table of 256 values for a pointwise
function of uint8, and DALI computes the formula. So a new function is one row. A step of another
package adds its row with `register`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpupipe.pipeline.geometry import describe_small
from gpupipe.pipeline.spec_checks import IMAGE_DTYPES
from gpupipe.pipeline.step import SampleIncompatibleError

if TYPE_CHECKING:
    from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)
"""torchvision's weights of red, green and blue (v2.functional.rgb_to_grayscale).

They sum to 0.9999, and torchvision truncates the luma of uint8.
"""
HIGHEST_LEVEL = 255
SCALE_TO_LEVELS = HIGHEST_LEVEL + 1 - 1e-3
"""The factor by which torchvision multiplies floats before it truncates to uint8 (v2.ToDtype)."""


@dataclass(frozen=True)
class ColorValue:
    """An argument of a colour function, with one value per sample.

    Attributes:
        name: The argument's name, in torchvision's words.
        dtype: The NumPy dtype of the array with the values of B samples: (B,), or (B, n) for n
            numbers per sample.
        min: The smallest value.
        max: The largest value.
    """

    name: str
    dtype: str
    min: float
    max: float


@dataclass(frozen=True)
class ColorFunction:
    """A function that changes the colours of images of 1 or 3 channels, but not shape or dtype.

    Floats are in 0..1, and results are clamped to the range of the dtype. The uint8 values of an
    engine may differ from the reference by 1. For a saturation above 2, single pixels may differ
    by more.

    Attributes:
        values: The arguments of the function, which may differ between samples.
        dtypes: The dtypes of images that the function supports.
        is_pointwise: Whether each value of the result depends only on the image's value at the
            same pixel and channel.
        formula: For a pointwise function: formula(pixels, *values) returns the new pixels. The
            arguments are tensors of torch or nodes of DALI, so it uses only + - * / ** and
            comparisons. Pixels are in 0..1: uint8 is scaled before, and truncated afterwards.
        reference: reference(image, *values) returns the new image, a tensor (C, H, W). By default
            it is the function of torchvision.transforms.v2.functional with the name under which
            `COLOR_OPS` has this row; if torchvision has none, it is the formula.
    """

    values: tuple[ColorValue, ...] = ()
    dtypes: tuple[str, ...] = IMAGE_DTYPES
    is_pointwise: bool = False
    formula: Callable[..., Any] | None = None
    reference: Callable[..., Tensor] | None = None


def apply(op: str, image: Tensor, values: Sequence[Any]) -> Tensor:
    """Apply a function of `COLOR_OPS` to one image.

    Args:
        op: The function's name.
        image: Tensor (C, H, W); floats are float32.
        values: The function's values for this image: numbers, or sequences of numbers.

    Raises:
        SampleIncompatibleError: If the image is too small for the mirrored border of a blur.
    """
    import torch
    from torchvision.transforms.v2 import functional as F

    row = COLOR_OPS[op]
    if function := row.reference or getattr(F, op, None):
        return function(image, *values)
    assert row.formula is not None
    numbers = row.formula(F.to_dtype(image, torch.float32, scale=True), *values).clamp(0.0, 1.0)
    return F.to_dtype(numbers, image.dtype, scale=True)  # type: ignore[no-any-return]


def register(name: str, op: ColorFunction) -> None:
    """Add a function to `COLOR_OPS`, for a step of another package.

    Raises:
        ValueError: If `COLOR_OPS` has a function of this name, or `op` has no formula.
    """
    if name in COLOR_OPS:
        raise ValueError(f"there is a color function '{name}' already: choose another name")
    if op.formula is None:
        raise ValueError(f"the color function '{name}' has no formula: write one, for every engine")
    COLOR_OPS[name] = op


def explain_small(kernel_size: Sequence[int], size: Sequence[int]) -> str:
    """Return a message if an image is too small for the mirrored border of a blur, else "".

    Args:
        kernel_size: [horizontal, vertical] size of the blur's kernel in pixels.
        size: [height, width] of the image in pixels.
    """
    needed = [k // 2 + 1 for k in kernel_size[::-1]]
    is_small = any(n < m for n, m in zip(size, needed, strict=True))
    return describe_small("gaussian_blur", size, needed) if is_small else ""


def check_blur(kernel_size: Sequence[int], size: Sequence[int]) -> None:
    """Raise SampleIncompatibleError if an image is too small for the mirrored border of a blur.

    Args:
        kernel_size: [horizontal, vertical] size of the blur's kernel in pixels.
        size: [height, width] of the image in pixels.
    """
    if small := explain_small(kernel_size, size):
        raise SampleIncompatibleError(small)


def _blur(image: Tensor, kernel_size: Sequence[int], sigma: Sequence[float]) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    check_blur(kernel_size, image.shape[-2:])
    blurred: Tensor = F.gaussian_blur(image, list(kernel_size), list(sigma))
    return blurred


def _permute(image: Tensor, permutation: Sequence[int]) -> Tensor:
    return image[list(permutation)] if len(image) > 1 else image


def _add_below_middle(image: Tensor, levels: int) -> Tensor:
    return image + (image < (HIGHEST_LEVEL + 1) // 2).to(image.dtype) * levels


def _scale_and_shift(image: Tensor, factor: float, shift: float) -> Tensor:
    return _add_scaled(image, factor, shift * (1.0 if image.is_floating_point() else HIGHEST_LEVEL))


def _scale_and_shift_by_mean(image: Tensor, factor: float, shift: float) -> Tensor:
    return _add_scaled(image, factor, shift * float(image.double().mean()))


def _add_scaled(image: Tensor, factor: float, offset: float) -> Tensor:
    changed = image.float() * factor + offset
    highest = 1.0 if image.is_floating_point() else HIGHEST_LEVEL
    return changed.clamp(0.0, highest).to(image.dtype)


_UINT8 = ("uint8",)
_SCALE_AND_SHIFT = (
    ColorValue("factor", "float64", -math.inf, math.inf),
    ColorValue("shift", "float64", -math.inf, math.inf),  # a share of the largest value, or mean
)


def _factor(name: str) -> tuple[ColorValue, ...]:
    """Return `ColorFunction.values` for one argument, a factor of 0 or more; 1 keeps the image."""
    return (ColorValue(name, "float64", 0.0, math.inf),)


COLOR_OPS: dict[str, ColorFunction] = {
    "invert": ColorFunction(is_pointwise=True),
    "posterize": ColorFunction((ColorValue("bits", "int32", 0, 8),), _UINT8, is_pointwise=True),
    "solarize": ColorFunction(
        (ColorValue("threshold", "float64", -math.inf, math.inf),),  # in units of the pixels
        is_pointwise=True,
    ),
    "solarize_add": ColorFunction(
        (ColorValue("levels", "int32", 0, 128),),  # added to values below 128, as timm does
        _UINT8,
        is_pointwise=True,
        reference=_add_below_middle,
    ),
    "autocontrast": ColorFunction(),
    "equalize": ColorFunction(dtypes=_UINT8),
    "adjust_brightness": ColorFunction(_factor("brightness_factor"), is_pointwise=True),
    "adjust_contrast": ColorFunction(_factor("contrast_factor")),
    "adjust_gamma": ColorFunction(
        _factor("gamma"), is_pointwise=True, formula=lambda pixels, gamma: pixels**gamma
    ),
    "adjust_saturation": ColorFunction(_factor("saturation_factor")),
    "adjust_hue": ColorFunction((ColorValue("hue_factor", "float64", -0.5, 0.5),)),  # in turns
    "adjust_sharpness": ColorFunction(_factor("sharpness_factor")),
    "gaussian_blur": ColorFunction(
        (
            ColorValue("kernel_size", "int32", 1, math.inf),  # [x, y] in pixels, both odd
            ColorValue("sigma", "float64", 0.0, math.inf),  # [x, y] in pixels
        ),
        reference=_blur,
    ),
    "jpeg": ColorFunction((ColorValue("quality", "int32", 1, 100),), _UINT8),
    "scale_and_shift": ColorFunction(  # as Albumentations does
        _SCALE_AND_SHIFT, is_pointwise=True, reference=_scale_and_shift
    ),
    "scale_and_shift_by_mean": ColorFunction(_SCALE_AND_SHIFT, reference=_scale_and_shift_by_mean),
    "permute_channels": ColorFunction(
        (ColorValue("permutation", "int32", 0, 2),),  # the input's channel for each channel
        reference=_permute,
    ),
}
"""The functions that `Primitives.color` can apply. Most have torchvision's functional names.

As in torchvision, a saturation, hue or permutation changes nothing in images of one channel.
"""
