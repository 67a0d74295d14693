"""Draws one of several by weights, for the parameter `p` of random_choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.schema.field_types import NUMBER

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]


def check_weights(weights: Sequence[float] | None, count: int) -> None:
    """Raise ValueError if these are not the weights of `count` steps; None is valid."""
    if weights is not None and len(weights) != count:
        raise ValueError(f"p has {len(weights)} numbers for {count} steps: write one per step")
    if weights is not None and not sum(weights):
        raise ValueError("p has no number above 0: write the weight of each step")


def choose_by_weight(
    weights: Sequence[float] | None, count: int, u: NDArray[np.float64]
) -> NDArray[Any]:
    """Choose one of `count` steps for each uniform draw.

    Args:
        weights: The weight of each step; None if all are equally probable.
        count: The number of steps.
        u: Uniform draws in [0, 1), float64 (B,).

    Returns:
        The numbers of the chosen steps, int32 (B,), from 0.
    """
    shares = np.array(weights or [1.0] * count)
    bounds = np.cumsum(shares / shares.sum())
    last = int(np.flatnonzero(shares)[-1])
    return np.minimum(np.searchsorted(bounds, u, side="right"), last).astype(np.int32)
