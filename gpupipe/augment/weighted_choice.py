"""WeightedChoice: the base of random_choice, on samples and on batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from typing_extensions import Self

from gpupipe.pipeline.container import BaseContainer
from gpupipe.pipeline.step import Sampled, Uniforms
from gpupipe.schema.field_types import NotNegative


class WeightedChoice(BaseContainer):
    """A container that draws one of its steps, by their weights."""

    p: tuple[NotNegative, ...] | None = None

    own_uniforms = 1

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.p is not None and len(self.p) != len(self.transforms):
            count = f"{len(self.p)} numbers for {len(self.transforms)} steps"
            raise ValueError(f"p has {count}: write one per step")
        if self.p is not None and not sum(self.p):
            raise ValueError("p has no number above 0: write the weight of each step")
        return self

    def draw(self, u: Uniforms) -> Sampled:
        """Return choice: int32 (N,), the number of the step of each sample or batch, from 0."""
        return {"choice": choose_by_weight(self.p, len(self.transforms), u[:, 0])}


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
