import numpy as np
import pydantic
import pytest

from gpupipe.pipeline.container import NestedStep, WeightedChoice, choose_by_weight
from gpupipe.steps.containers import Identity

BELOW_1 = 1 - 2.0**-53
"""The greatest draw."""


def choose(weights: list[float] | None, *draws: float, count: int = 3) -> list[int]:
    chosen = choose_by_weight(weights, count, np.array(draws))
    assert chosen.dtype == np.int32
    return chosen.tolist()


def test_each_step_has_a_part_of_the_unit_interval_as_long_as_its_weight() -> None:
    assert choose([1, 2, 1], 0.0, 0.2499, 0.25, 0.7499, 0.75, BELOW_1) == [0, 0, 1, 1, 2, 2]
    assert choose([10, 20, 10], 0.2499, 0.25) == [0, 1], "weights are divided by their sum"


def test_without_weights_all_are_equally_probable() -> None:
    draws = (np.arange(9) + 0.5) / 9
    assert choose(None, *draws) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_weight_of_zero_is_never_chosen() -> None:
    assert choose([0, 1, 0], 0.0, 0.5, BELOW_1) == [1, 1, 1]


def test_the_greatest_draw_is_the_last_step_where_the_sum_is_rounded_down() -> None:
    assert choose([0.1] * 10, BELOW_1, count=10) == [9]


def test_weights_fit_the_steps() -> None:
    step = NestedStep(name="identity", step=Identity())
    for weights in (None, [0, 0, 1]):
        WeightedChoice(transforms=[step] * 3, p=weights)
    with pytest.raises(pydantic.ValidationError, match="p has 2 numbers for 3 steps"):
        WeightedChoice(transforms=[step] * 3, p=[1, 2])
    with pytest.raises(pydantic.ValidationError, match="p has no number above 0"):
        WeightedChoice(transforms=[step] * 2, p=[0, 0])
