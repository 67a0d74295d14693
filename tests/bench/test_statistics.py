from __future__ import annotations

import math

import pytest

from gpupipe.bench import statistics


def test_a_ratio_is_that_of_paired_rounds() -> None:
    """Both sides drift by the same factor from round to round: the ratio does not."""
    found = statistics.ratio([200.0, 100.0, 400.0], [100.0, 50.0, 200.0])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.is_certain
    assert statistics.ratio([2.0], [1.0]) == statistics.Ratio(2.0, None, None)


def test_an_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    import random

    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        a = [math.exp(draw.gauss(0.3, 0.05)) for _ in range(5)]
        b = [math.exp(draw.gauss(0.0, 0.05)) for _ in range(5)]
        found = statistics.ratio(a, b)
        assert found.low and found.high
        held += found.low <= math.exp(0.3) <= found.high
    assert 0.93 < held / 2000 < 0.97


def test_students_t_is_that_of_scipy() -> None:
    """scikit-learn, a dependency of the tests, brings SciPy."""
    from scipy import stats

    for freedom in range(1, 21):
        expected = stats.t.ppf(0.975, freedom)
        assert statistics.t_95(freedom) == pytest.approx(expected, abs=6e-4), freedom
    for freedom in (21, 30, 100):
        assert statistics.t_95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=5e-3)
