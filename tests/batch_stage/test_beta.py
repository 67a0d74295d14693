"""The draws of the symmetric beta distribution, against its distribution function."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from gpupipe.batch_stage.beta import symmetric_beta
from gpupipe.sampling import draws

COUNT = 50_000


def distribution(x: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """The distribution function of Beta(alpha, alpha), by its power series up to 1/2."""
    low = np.minimum(x, 1 - x)
    total, factor = np.zeros_like(low), 1.0
    for n in range(200):
        total += factor * low**n / (alpha + n)
        factor *= (n + 1 - alpha) / (n + 1)
    log_beta = 2 * math.lgamma(alpha) - math.lgamma(2 * alpha)
    below = low**alpha * total / math.exp(log_beta)
    return np.where(x <= 0.5, below, 1 - below)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 0.5, 1.0, 1.5, 2.0, 8.0])
def test_the_draws_have_the_distribution(alpha: float) -> None:
    """Kolmogorov and Smirnov's test, at a level of 0.001.

    Doubles near 1 are too far apart for a small alpha: the numbers there are left out.
    """
    u = draws.uniform(3, 1, np.arange(COUNT), draws.stream("batch: mixup"), 2)
    x = np.sort(symmetric_beta(u, alpha))
    ranks = np.arange(COUNT + 1) / COUNT
    below = x[x < 1 - 1e-12]
    expected = distribution(below, alpha)
    above, under = ranks[1 : len(below) + 1] - expected, expected - ranks[: len(below)]
    distance = max(above.max(), under.max())
    assert distance < 1.95 / math.sqrt(COUNT)


def test_the_distribution_function_of_the_test_is_that_of_closed_forms() -> None:
    x = np.linspace(0.001, 0.999, 99)
    assert np.allclose(distribution(x, 1.0), x)
    assert np.allclose(distribution(x, 0.5), 2 / np.pi * np.arcsin(np.sqrt(x)))
    assert np.allclose(distribution(x, 2.0), 3 * x**2 - 2 * x**3)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.2, 1.0, 1e6, 1e300])
def test_every_draw_is_a_share_whatever_the_uniforms(alpha: float) -> None:
    ends = np.array([0.0, 2.0**-53, 0.25, 0.5, 0.75, 1 - 2.0**-53])
    u = np.stack([axis.ravel() for axis in np.meshgrid(ends, ends)], axis=1)
    with np.errstate(all="raise", under="ignore"):
        x = symmetric_beta(u, alpha)
    assert np.isfinite(x).all()
    assert (x >= 0).all()
    assert (x <= 1).all()
