"""The order of the samples in an epoch.

Without weights, all epochs are consecutive parts of one endless sequence of passes, and each has
`epoch_size` samples of it:

    ┌──────────── pass 0 ────────────┬──────────── pass 1 ────────────┬────────── ...
    │ all samples, permuted          │ all samples, permuted again    │
    └────────────────────────────────┴────────────────────────────────┴────────── ...
    │ epoch 0   │ epoch 1   │ epoch 2   │ epoch 3   │ epoch 4   │ ...

In a pass, each sample comes `repeats` times in a row. So all samples come equally often, whatever
the size of an epoch is. If an epoch is as large as the data set, and repeats is 1, epoch e is pass
e. If the number of samples changes from epoch to epoch, each epoch takes the part that it would
have if the number had always been its own.

Of a mixed data set, each part has such a sequence of its own. An epoch takes a fixed number of
samples of each, and interleaves them evenly.

With weights, each epoch is drawn by itself, with replacement.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.population import interleave
from gpupipe.errors import DataError
from gpupipe.sampling import draws
from gpupipe.sampling.selection import Selection

_WEIGHTS = draws.stream("weights")


def order_epoch(
    selection: Selection,
    count: int,
    rows: NDArray[np.int64] | None = None,
    *,
    seed: int,
    epoch: int,
    shuffle: bool,
) -> NDArray[np.int64]:
    """Return the samples of an epoch in order.

    Args:
        selection: Which samples an epoch has, and how often.
        count: The number of samples to choose from.
        rows: Their rows in the index, int64 (count,); None: 0 .. count - 1.
        seed: The loader's seed.
        epoch: The epoch, from 0.
        shuffle: Permute each pass; else its order is that of `rows`.

    Returns:
        Numbers from 0 to count - 1, int64 (n,); n is `selection.epoch_size_of(count)`.

    Raises:
        DataError: If no sample to choose from has a weight above 0.
    """
    size = selection.epoch_size_of(count)
    if selection.weights is not None:
        weights = selection.weights if rows is None else selection.weights[rows]
        drawn = _draw_weighted(weights, -(-size // selection.repeats), seed, epoch)
        return np.repeat(drawn, selection.repeats)[:size]
    if selection.mixture is not None:
        return _mix_parts(selection, seed, epoch, shuffle)
    return _take_from_passes(selection.repeats, count, size, seed, epoch, shuffle)


def _mix_parts(selection: Selection, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """Take samples of each part from its own passes, and interleave them."""
    assert selection.mixture is not None
    mixture, sizes = selection.mixture, selection.count_of_parts()
    parts = interleave(sizes)
    order = np.empty(len(parts), np.int64)
    for number, (start, count) in enumerate(zip(mixture.starts, mixture.counts, strict=True)):
        purpose = f"order of part {number}"
        taken = _take_from_passes(1, count, int(sizes[number]), seed, epoch, shuffle, purpose)
        order[parts == number] = taken + start
    return order


def _take_from_passes(
    repeats: int,
    count: int,
    size: int,
    seed: int,
    epoch: int,
    shuffle: bool,
    purpose: str = draws.ORDER,
) -> NDArray[np.int64]:
    parts = [np.empty(0, np.int64)]
    begin, end = epoch * size, (epoch + 1) * size
    while begin < end:
        number, offset = divmod(begin, count * repeats)
        order = draws.permutation(seed, number, count, purpose) if shuffle else np.arange(count)
        length = min(end - begin, count * repeats - offset)
        positions = np.arange(offset, offset + length) // repeats
        parts.append(order[positions] if repeats > 1 or length < count else order)
        begin += length
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def _draw_weighted(
    weights: NDArray[np.float64], size: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Draw with replacement by inverting the cumulative sum of the weights."""
    sums = np.cumsum(weights)
    if not sums[-1] > 0:
        raise DataError(
            f"loader.weights: none of the {len(weights):,} samples to choose from has a weight "
            "above 0"
        )
    positions = np.arange(size, dtype=np.int64)
    values = draws.uniform(seed, epoch, positions, _WEIGHTS, 1)[:, 0] * sums[-1]
    # Sorted, the searches are 5 times as fast: they walk through `sums` in its order.
    ascending = np.argsort(values)
    drawn = np.empty(size, np.int64)
    # Without the last sum, no rounding can lead beyond the last sample.
    drawn[ascending] = np.searchsorted(sums[:-1], values[ascending], side="right")
    return drawn


def count_earlier(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each element how often its number came before, int64 (n,)."""
    by_id = np.argsort(ids, kind="stable")
    ordered, positions = ids[by_id], np.arange(len(ids))
    is_first = np.ones(len(ids), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    earlier = np.empty(len(ids), np.int64)
    earlier[by_id] = positions - np.maximum.accumulate(np.where(is_first, positions, 0))
    return earlier
