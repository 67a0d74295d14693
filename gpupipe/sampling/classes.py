"""Shares of samples and weights that are by class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.sampling import draws
from gpupipe.sampling.epoch_order import count_earlier


def choose_share(share: float, labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Choose a share of the samples of each class, at random.

    The share of each class is rounded to whole samples, and is at least one sample. With the same
    seed, a larger share contains a smaller one.

    Args:
        share: The share, above 0 and at most 1.
        labels: The class of each sample, int64 (N,).
        seed: The loader's seed.

    Returns:
        The chosen rows, ascending, int64 (n,).
    """
    order = draws.permutation(seed, 0, len(labels), "subset")
    _, members, sizes = np.unique(labels[order], return_inverse=True, return_counts=True)
    wanted = np.maximum(np.rint(share * sizes), 1)
    return np.sort(order[count_earlier(members) < wanted[members]])


def balance_classes(
    labels: NDArray[np.int64], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return weights with which all classes are drawn equally often.

    Args:
        labels: The class of each sample, int64 (N,).
        rows: The samples to choose from; None: all. The others do not count.

    Returns:
        1 / the number of samples to choose from in the sample's class, float64 (N,).
    """
    _, members = np.unique(labels, return_inverse=True)
    chosen = members if rows is None else members[rows]
    sizes = np.bincount(chosen, minlength=len(labels))
    return 1.0 / np.maximum(sizes, 1)[members]
