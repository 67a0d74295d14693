import random

import numpy as np
import pytest
import torch

from gpupipe.runtime.function_draws import GlobalDrawsError, check_draws, seed_generators
from gpupipe.runtime.user_functions import UserFunction, find_function

IMAGE = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)


def found(name: str) -> UserFunction:
    return find_function(f"helpers.user_functions:{name}", {}, None)


@pytest.mark.parametrize(
    "name", ["draws_of_torch", "draws_of_numpy", "draws_of_python", "draws_of_its_own"]
)
def test_global_draws_are_found_only_where_calls_are_checked(name: str) -> None:
    found(name)(IMAGE, "image", 0)
    with check_draws(), pytest.raises(GlobalDrawsError, match=name):
        found(name)(IMAGE, "image", 0)
    with check_draws():
        assert found("halve")(IMAGE, "image", 0).shape == (1, 2, 2)
        found("stamp")(IMAGE, "image", 0)


def test_nans_are_equal() -> None:
    def divide(image: torch.Tensor) -> torch.Tensor:
        return image / 0

    with check_draws():
        assert find_function(divide, {}, None)(IMAGE, "image", 0).isnan().any()


def test_threads_are_told_of_workers_which_help_against_global_generators_alone() -> None:
    with check_draws():
        with pytest.raises(GlobalDrawsError, match=r"set workers: 1 .*'rng'"):
            found("draws_of_numpy")(IMAGE, "image", 0)
        with pytest.raises(GlobalDrawsError, match=r"first: let it draw from .*'rng'"):
            found("draws_of_its_own")(IMAGE, "image", 0)


def _draw() -> list[float]:
    return [torch.rand(1).item(), np.random.rand(), random.random()]


def test_a_seed_decides_what_all_generators_draw() -> None:
    with check_draws():  # which keeps the generators of the tests
        made = []
        for seed in (1, 1, 2, 2**53 - 1, 2**21 - 1):
            seed_generators(seed)
            made.append(_draw())
    assert made[0] == made[1]
    for number in range(3):
        assert len({draws[number] for draws in made}) == 4


def test_generators_go_on_as_if_no_check_had_been() -> None:
    seed_generators(3)
    expected = _draw() + _draw()
    seed_generators(3)
    first = _draw()
    with check_draws():
        seed_generators(9)
    assert first + _draw() == expected
