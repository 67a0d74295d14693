"""The order of the samples in an epoch, and how ranks and batches divide it.

Without weights, the epochs are consecutive parts of one endless sequence of passes, and each epoch
has `epoch_size` samples:

    ┌──────────── pass 0 ────────────┬──────────── pass 1 ────────────┬────────── ...
    │ all samples, permuted          │ all samples, permuted again    │
    └────────────────────────────────┴────────────────────────────────┴────────── ...
    │ epoch 0   │ epoch 1   │ epoch 2   │ epoch 3   │ epoch 4   │ ...

In a pass, each sample comes `repeats` times in a row. So all samples come equally often, whatever
the size of an epoch is. If an epoch is as large as the data set, and repeats is 1, epoch e is pass
e. If the number of samples changes between epochs, epoch e is cut from a sequence in which
every pass has epoch e's number of samples.

In a mixed data set, each part has such a sequence of its own. An epoch takes a fixed number of
samples of each part, and interleaves them evenly.

A pass may also keep the samples of a chunk near each other: see chunk_order.py.

With weights, the samples of each epoch are drawn with replacement, independently of other epochs.

An EpochLayout then cuts the order into steps, and each step into a batch for every rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, counted
from gpupipe.sampling import draws
from gpupipe.sampling.selection import Selection, interleave

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
        rows: The rows in the index of these samples, int64 (count,); None: 0 .. count - 1.
        seed: The loader's seed.
        epoch: The epoch, from 0.
        shuffle: Permute each pass; otherwise a pass has the order of `rows`.

    Returns:
        Positions in `rows`, from 0 to count - 1, int64 (n,); n is `selection.epoch_size_of(count)`.

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
    chunks = selection.chunks

    def order_pass(number: int) -> NDArray[np.int64]:
        if shuffle and chunks is not None:
            return chunks.permute(seed, number, rows)
        return _order_pass(count, seed, number, shuffle)

    return _take_from_passes(selection.repeats, count, size, epoch, order_pass)


def _mix_parts(selection: Selection, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """Return the order of an epoch of a mixed data set: samples of all parts, interleaved."""
    assert selection.mixture is not None
    mixture, sizes = selection.mixture, selection.count_of_parts()
    parts = interleave(sizes)
    order = np.empty(len(parts), np.int64)
    for number, (start, count) in enumerate(zip(mixture.starts, mixture.counts, strict=True)):
        of_part = partial(
            _order_pass, count, seed, shuffle=shuffle, purpose=f"order of part {number}"
        )
        taken = _take_from_passes(1, count, int(sizes[number]), epoch, of_part)
        order[parts == number] = taken + start
    return order


def _order_pass(
    count: int, seed: int, number: int, shuffle: bool, purpose: str = draws.ORDER
) -> NDArray[np.int64]:
    return draws.permutation(seed, number, count, purpose) if shuffle else np.arange(count)


def _take_from_passes(
    repeats: int, count: int, size: int, epoch: int, order_pass: Callable[[int], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return the part of the sequence of passes that is an epoch of `size` samples.

    `order_pass` returns the order of the `count` samples in the pass of a number.
    """
    parts = [np.empty(0, np.int64)]
    begin, end = epoch * size, (epoch + 1) * size
    while begin < end:
        number, offset = divmod(begin, count * repeats)
        order = order_pass(number)
        length = min(end - begin, count * repeats - offset)
        positions = np.arange(offset, offset + length) // repeats
        parts.append(order[positions] if repeats > 1 or length < count else order)
        begin += length
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def _draw_weighted(
    weights: NDArray[np.float64], size: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Draw `size` positions in `weights`, with replacement, in proportion to the weights there."""
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
    # Without the last sum, a rounded-up value cannot select a position after the last sample.
    drawn[ascending] = np.searchsorted(sums[:-1], values[ascending], side="right")
    return drawn


def count_earlier(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each position in `ids` how often its id occurs earlier in `ids`, int64 (n,)."""
    by_id = np.argsort(ids, kind="stable")
    ordered, positions = ids[by_id], np.arange(len(ids))
    is_first = np.ones(len(ids), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    earlier = np.empty(len(ids), np.int64)
    earlier[by_id] = positions - np.maximum.accumulate(np.where(is_first, positions, 0))
    return earlier


@dataclass(frozen=True)
class EpochLayout:
    """The division of samples into batches, over all ranks.

    All ranks take the same number of steps, and no batch is empty. The batches before the last step
    are full, except for a case of "partial". `last_batch` says what happens to the other samples:

    - "partial" divides them as evenly as possible. A rank that would get none takes one sample from
      its own batch of the step before. That batch then lacks one sample.
    - "drop" leaves them out.
    - "pad" fills the batches up with samples from the start of the epoch.

    Attributes:
        total: The number of samples to divide.
        batch_size: Samples per batch and rank.
        world_size: The number of ranks.
        last_batch: "partial", "drop" or "pad".
        is_dealt: Whether the ranks take the samples of a step in turn, one each; otherwise each
            rank takes a contiguous block.
    """

    total: int
    batch_size: int
    world_size: int
    last_batch: str
    is_dealt: bool = False

    @property
    def num_steps(self) -> int:
        everyone = self.batch_size * self.world_size
        return self.total // everyone if self.last_batch == "drop" else -(-self.total // everyone)

    def batch_sizes(self, step: int) -> NDArray[np.int64]:
        """Return the batch size of every rank at a step, int64 (world_size,)."""
        full = np.full(self.world_size, self.batch_size, np.int64)
        if self.last_batch != "partial" or step < self.num_steps - 2:
            return full
        left = self._left_for_last_step()
        return np.maximum(left, 1) if step == self.num_steps - 1 else full - (left < 1)

    def start(self, step: int) -> int:
        """Return how many samples all ranks together have had before a step."""
        start = step * self.batch_size * self.world_size
        if self.last_batch == "partial" and 0 < step == self.num_steps - 1:
            start -= int((self._left_for_last_step() < 1).sum())  # taken from the step before
        return start

    def end(self, step: int) -> int:
        """Return how many samples all ranks together have had after a step."""
        return self.start(step) + int(self.batch_sizes(step).sum())

    def positions(self, step: int, rank: int) -> NDArray[np.int64]:
        """Return the positions of the samples that a rank gets at a step, int64 (B,).

        With "pad", the position `total + n` means sample n of the epoch. No rank gets more samples
        than a rank of a lower number, so no position is skipped when the ranks take turns.
        """
        sizes = self.batch_sizes(step)
        mine = np.arange(sizes[rank])
        if self.is_dealt:
            return self.start(step) + rank + mine * self.world_size
        return self.start(step) + int(sizes[:rank].sum()) + mine

    def _left_for_last_step(self) -> NDArray[np.int64]:
        """Return how many samples each rank has left for the last step, int64 (world_size,).

        Called only if `last_batch` is "partial". A rank with less than one sample left takes one
        from its batch of the step before.
        """
        each, rest = divmod(self.total, self.world_size)
        share = each + (np.arange(self.world_size) < rest)
        return share - (self.num_steps - 1) * self.batch_size

    def explain_problem(self) -> str:
        """Explain why the samples cannot be divided this way; "" if they can."""
        samples, ranks = counted(self.total, "sample"), counted(self.world_size, "rank")
        if self.total < 1:
            return "there are no samples"
        if self.last_batch == "drop" and self.total < self.batch_size * self.world_size:
            return (
                f"{samples} cannot give {ranks} a full batch of {self.batch_size} each: make "
                "loader.batch_size smaller, or set last_batch: partial"
            )
        if self.last_batch == "partial" and self.total < self.world_size:
            return (
                f"{samples} cannot give each of {ranks} one: use fewer ranks, or set "
                "last_batch: pad"
            )
        if self.last_batch == "partial" and self.batch_size == 1 and self.total % self.world_size:
            return (
                f"{samples} one at a time cannot give {ranks} equal steps: set batch_size above "
                "1, or last_batch: drop or pad"
            )
        return ""
