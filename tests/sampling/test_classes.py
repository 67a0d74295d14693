"""Shares and weights by class."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.sampling.classes import balance_classes, choose_share

LABELS = st.lists(st.integers(-1, 6), min_size=1, max_size=80).map(lambda n: np.array(n, np.int64))
SHARES = st.floats(0.001, 1.0)


@given(LABELS, SHARES, st.integers(0, 2**63 - 1))
def test_a_share_is_of_each_class(labels: np.ndarray, share: float, seed: int) -> None:
    rows = choose_share(share, labels, seed)
    assert rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()
    for label in np.unique(labels):
        size = (labels == label).sum()
        assert (labels[rows] == label).sum() == max(1, np.rint(share * size))


@given(LABELS, SHARES, SHARES)
def test_a_larger_share_contains_a_smaller(labels: np.ndarray, one: float, other: float) -> None:
    small, large = (set(choose_share(s, labels, 7).tolist()) for s in sorted((one, other)))
    assert small <= large


def test_shares_are_drawn_by_the_seed_and_uniformly() -> None:
    labels = np.arange(40) % 2
    counts = np.zeros(40)
    for seed in range(2000):
        counts[choose_share(0.25, labels, seed)] += 1
    assert counts.sum() == 20_000
    assert ((counts - 500) ** 2 / (500 * 0.75)).sum() < 85, "about 38 degrees of freedom: 38 +- 9"


def test_balanced_classes_are_equally_likely() -> None:
    labels = np.array([5, 5, 5, 0, 2, 2])
    weights = balance_classes(labels)
    assert [weights[labels == n].sum() for n in (0, 2, 5)] == [1.0, 1.0, 1.0]
    rows = np.array([0, 3, 4, 5])
    weights = balance_classes(labels, rows)
    assert [weights[rows][labels[rows] == n].sum() for n in (0, 2, 5)] == [1.0, 1.0, 1.0]
