"""What color_jitter and random_photometric_distort share: four adjustments, by drawn factors."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.augment import color_ops
from gpupipe.pipeline.primitives import Primitives
from gpupipe.schema.field_types import NUMBER, ORDERED, NotNegative, spread, two_numbers

ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")
"""The adjustments, in torchvision's order. `Primitives.color` has each as adjust_NAME."""

Turn = Annotated[float, Field(ge=-0.5, le=0.5, allow_inf_nan=False), NUMBER]
Factors = Annotated[
    tuple[NotNegative, NotNegative],
    spread("a number a of at least 0 for [max(0, 1 - a), 1 + a], or [min, max]", 1.0, lowest=0.0),
    ORDERED,
]
"""[min, max] of a factor that 1 leaves unchanged, with torchvision's short form."""
Turns = Annotated[
    tuple[Turn, Turn],
    spread("a number a from 0 to 0.5 for [-a, a], or [min, max]", max_spread=0.5),
    ORDERED,
]
"""[min, max] turn of the hue, in full turns, with torchvision's short form."""

FactorPair = Annotated[
    tuple[NotNegative, NotNegative], two_numbers("[min, max], both at least 0"), ORDERED
]
"""[min, max] of a factor, without the short form."""
TurnPair = Annotated[tuple[Turn, Turn], two_numbers("[min, max], from -0.5 to 0.5"), ORDERED]
"""[min, max] turn of the hue, without the short form."""


def draw_between(bounds: tuple[float, float], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers between [min, max] for draws in [0, 1)."""
    return bounds[0] + u * (bounds[1] - bounds[0])


def lower_adjustment(image: Primitives, name: str, factor: NDArray[np.float64]) -> None:
    """Apply one of `ADJUSTMENTS` to a batch, with a factor per sample, (B,)."""
    image.color(f"adjust_{name}", factor)


def torch_adjustment(image: Any, name: str, factor: Any) -> Any:
    """Apply one of `ADJUSTMENTS` to one image in torch."""
    return color_ops.apply(f"adjust_{name}", image, [float(factor)])
