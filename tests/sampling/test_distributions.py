"""Distributions that a YAML file may ask for: their values, their ends, and their frequencies."""

from __future__ import annotations

import numpy as np
import pytest

from gpupipe.sampling import draws
from gpupipe.sampling.distributions import Choice, Distribution, Flip, Normal, Uniform, Vector

COUNT = 20_000
ALMOST_ONE = 1.0 - 2.0**-53


def values(distribution: Distribution) -> np.ndarray:
    ids = np.arange(COUNT)
    return distribution(draws.uniform(0, 0, ids, draws.stream("x"), distribution.num_uniforms))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_numbers_fill_their_range_evenly() -> None:
    found = values(Uniform(-2.0, 6.0))
    assert -2 <= found.min() < -1.99
    assert 5.99 < found.max() < 6
    counts, _ = np.histogram(found, 16, (-2, 6))
    assert chi_square(counts, np.full(16, COUNT / 16)) < 37.7  # 15 degrees of freedom, p = 0.001


def test_uniform_whole_numbers_have_both_ends() -> None:
    found = values(Uniform(3, 7, whole=True))
    assert found.dtype.kind == "i"
    numbers, counts = np.unique(found, return_counts=True)
    assert numbers.tolist() == [3, 4, 5, 6, 7]
    assert chi_square(counts, np.full(5, COUNT / 5)) < 18.5  # 4 degrees of freedom, p = 0.001


def test_normal_numbers_have_mean_deviation_and_tails() -> None:
    found = (values(Normal(10.0, 3.0)) - 10.0) / 3.0
    assert abs(found.mean()) < 4 / np.sqrt(COUNT)
    assert abs(found.std() - 1.0) < 4 / np.sqrt(2 * COUNT)
    for bound, share in ((0.5, 0.3829), (1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)):
        deviation = np.sqrt(share * (1 - share) / COUNT)
        assert abs((np.abs(found) < bound).mean() - share) < 4 * deviation


def test_normal_numbers_are_finite_for_every_draw_and_round_to_whole_ones() -> None:
    ends = np.array([[0.0, 0.0], [ALMOST_ONE, 0.0], [ALMOST_ONE, 0.5], [0.5, ALMOST_ONE]])
    assert np.isfinite(Normal(0.0, 1.0)(ends)).all()
    assert Normal(2.6, 0.0, whole=True)(ends).tolist() == [3, 3, 3, 3]


def test_choices_are_equally_probable_and_may_be_lists() -> None:
    numbers, counts = np.unique(values(Choice((2.5, 1.0, 9.0))), return_counts=True)
    assert numbers.tolist() == [1.0, 2.5, 9.0]
    assert chi_square(counts, np.full(3, COUNT / 3)) < 13.9  # 2 degrees of freedom, p = 0.001
    pairs = values(Choice(((1, 2), (3, 4))))
    assert pairs.shape == (COUNT, 2)
    assert set(map(tuple, pairs.tolist())) == {(1, 2), (3, 4)}
    assert Choice((1, 2))(np.array([[ALMOST_ONE]])).tolist() == [2]


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_flips_are_1_with_their_probability(p: float) -> None:
    found = values(Flip(p))
    assert set(found.tolist()) <= {0, 1}
    assert abs(found.mean() - p) <= 4 * np.sqrt(p * (1 - p) / COUNT)


def test_the_parts_of_a_vector_are_drawn_independently() -> None:
    vector = Vector((Uniform(0, 1), 5.0, Normal(0, 1), Flip(0.5)))
    assert vector.num_uniforms == 4
    found = values(vector)
    assert found.shape == (COUNT, 4)
    assert (found[:, 1] == 5).all()
    correlation = np.corrcoef(found[:, [0, 2, 3]].T) - np.eye(3)
    assert np.abs(correlation).max() < 5 / np.sqrt(COUNT)
