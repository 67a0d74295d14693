"""Whether draws have the distribution that they should have."""

from typing import Any

import numpy as np

MOST = 4.0
"""Standard deviations. Draws that are right exceed them once in 30,000 tests."""


def chi_square(counts: Any, probabilities: Any = None) -> float:
    """Return how far counts are from what is expected, in standard deviations.

    Args:
        counts: How often each outcome was drawn.
        probabilities: The probability of each; by default all are equal.

    Returns:
        Pearson's chi-square, as a normal deviate after Wilson and Hilferty (1931).
    """
    counts = np.asarray(counts, np.float64)
    shares = np.full(len(counts), 1.0) if probabilities is None else np.asarray(probabilities)
    expected = counts.sum() * shares / shares.sum()
    assert (expected > 5).all(), "too few draws for this test"
    statistic, df = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    spread = 2.0 / (9.0 * df)
    return float((np.cbrt(statistic / df) - (1.0 - spread)) / np.sqrt(spread))


def largest_gap(ours: Any, theirs: Any) -> float:
    """Return the two-sample statistic of Kolmogorov and Smirnov; below 2.2 but for once in 10,000
    tests.
    """
    ours, theirs = np.sort(ours), np.sort(theirs)
    both = np.concatenate([ours, theirs])
    shares = [np.searchsorted(one, both, side="right") / len(one) for one in (ours, theirs)]
    scale = np.sqrt(len(ours) * len(theirs) / (len(ours) + len(theirs)))
    return float(np.abs(shares[0] - shares[1]).max() * scale)
