"""Shares of samples and weights that are by class."""

from __future__ import annotations

from collections.abc import Mapping

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


def choose_part(
    name: str, shares: Mapping[str, float], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Choose the samples of one of several parts, which are drawn at random from each class.

    Each class is cut where the sums of the shares fall, rounded to whole samples. So a part has no
    sample of a class that is too small. The draw depends on nothing but the shares and the labels.

    Args:
        name: The part.
        shares: The share of each part, above 0; at most 1 in all.
        labels: The class of each sample, int64 (N,).

    Returns:
        The rows of the part, ascending, int64 (n,). No row is in two parts.
    """
    order = draws.permutation(0, 0, len(labels), "split")
    _, members, sizes = np.unique(labels[order], return_inverse=True, return_counts=True)
    ends = np.cumsum(list(shares.values()))
    number = list(shares).index(name)
    first, end = (
        np.rint(np.round(share * sizes, 6))
        for share in (ends[number - 1] if number else 0.0, ends[number])
    )
    place = count_earlier(members)
    return np.sort(order[(place >= first[members]) & (place < end[members])])


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
