"""What color_jitter and random_photometric_distort share: four adjustments, by drawn factors."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from gpupipe.augment import color_ops
from gpupipe.pipeline.primitives import Primitives
from gpupipe.schema.field_types import NUMBER, check_list, check_ordered, is_number, should_be

ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")
"""The adjustments, in torchvision's order. `Primitives.color` has each as adjust_NAME."""

_FACTOR_WORDS = "a number a of at least 0 for [max(0, 1 - a), 1 + a], or [least, most]"
_HUE_WORDS = "a number a from 0 to 0.5 for [-a, a], or [least, most]"


def _expand_factor(value: Any) -> Any:
    if not is_number(value):
        return check_list(value, (2,), _FACTOR_WORDS)
    if value < 0:
        raise should_be(_FACTOR_WORDS)
    return max(0.0, 1.0 - value), 1.0 + value


def _expand_hue(value: Any) -> Any:
    if not is_number(value):
        return check_list(value, (2,), _HUE_WORDS)
    if not 0 <= value <= 0.5:
        raise should_be(_HUE_WORDS)
    return -value, value


Factor = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Turn = Annotated[float, Field(ge=-0.5, le=0.5, allow_inf_nan=False), NUMBER]
Factors = Annotated[
    tuple[Factor, Factor], BeforeValidator(_expand_factor), AfterValidator(check_ordered)
]
"""[least, most] of a factor that 1 leaves unchanged, with torchvision's short form."""
Turns = Annotated[tuple[Turn, Turn], BeforeValidator(_expand_hue), AfterValidator(check_ordered)]
"""[least, most] turn of the hue, in full turns, with torchvision's short form."""

FactorPair = Annotated[
    tuple[Factor, Factor],
    BeforeValidator(lambda value: check_list(value, (2,), "[least, most], both at least 0")),
    AfterValidator(check_ordered),
]
"""[least, most] of a factor, without the short form."""
TurnPair = Annotated[
    tuple[Turn, Turn],
    BeforeValidator(lambda value: check_list(value, (2,), "[least, most], from -0.5 to 0.5")),
    AfterValidator(check_ordered),
]
"""[least, most] turn of the hue, without the short form."""


def draw_between(bounds: tuple[float, float], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers between [least, most] for draws in [0, 1)."""
    return bounds[0] + u * (bounds[1] - bounds[0])


def lower_adjustment(image: Primitives, name: str, factor: NDArray[np.float64]) -> None:
    """Apply one of `ADJUSTMENTS` to a batch, with a factor per sample, (B,)."""
    image.color(f"adjust_{name}", factor)


def torch_adjustment(image: Any, name: str, factor: Any) -> Any:
    """Apply one of `ADJUSTMENTS` to one image in torch."""
    return color_ops.apply(f"adjust_{name}", image, [float(factor)])
