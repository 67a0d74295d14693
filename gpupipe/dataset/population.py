"""Which samples an epoch has, where it is not simply all of them.

A Population settles the samples of each epoch, for a source whose samples are not always all there.
A Mixture says how many samples an epoch has of each part of a data set that is mixed of several,
and `interleave` their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Rows
from gpupipe.dataset.index import Index
from gpupipe.errors import DataError, counted

Stop = Literal["first", "all", "never"]
_SLACK = 1e-9
"""Products of weights are rounded: 0.3 / 0.1 is 3."""
UnmapFiles = Callable[[set[int]], None]
"""Unmaps files, which are numbered by their positions in SpanColumn.files."""


class Population(ABC):
    """The samples of each epoch, for a source whose samples are not all available at all times.

    The samples of an epoch are settled, and pinned, when they are first asked for. Pinned samples
    stay readable until `release` or `close`.
    """

    @abstractmethod
    def ids(self, epoch: int, problem: Callable[[int], str]) -> Rows:
        """Return the rows of an epoch, and wait until there are enough.

        The first call for an epoch settles its rows and pins them.

        Args:
            epoch: The epoch.
            problem: Says why a number of samples is not enough, or returns "" if it is.

        Returns:
            Rows of the index, ascending, int64 (n,).

        Raises:
            DataError: There will never be enough.
        """

    @abstractmethod
    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        """Whether `ids` would return at once. Does not wait.

        If it returns True, the rows of the epoch are settled and pinned.

        Raises:
            DataError: There will never be enough samples.
        """

    @abstractmethod
    def generation(self, epoch: int) -> int | None:
        """The number with which `resume` restores the epoch's rows; None if not yet settled."""

    @abstractmethod
    def resume(self, epoch: int, generation: int) -> None:
        """Settle the rows of an epoch as they were before.

        Args:
            epoch: The epoch.
            generation: What `generation` returned for this epoch.

        Raises:
            StateError: These rows are no longer available.
        """

    @abstractmethod
    def release(self, keep: Callable[[int], bool]) -> None:
        """Unpin the samples of every epoch for which `keep` returns False."""

    @abstractmethod
    def close(self) -> None:
        """Unpin all samples. May be called twice."""


@runtime_checkable
class Growing(Protocol):
    """A source of which later epochs may have more samples."""

    def population(
        self, index: Index, rank: int, world_size: int, seed: int, unmap_files: UnmapFiles
    ) -> Population | None:
        """The samples of each epoch, for the loader of one rank; None if it is always all of them.

        Args:
            index: The index.
            rank: The rank of the loader.
            world_size: The number of ranks.
            seed: The seed of the run.
            unmap_files: Engine.unmap_files. The population calls it before it removes or replaces
                files of the index.
        """


@runtime_checkable
class ReadThrough(Protocol):
    """A source that other machines read in another way than this one."""

    def read_through(self, index: Index) -> Index:
        """The index for engines that read the data on other machines, with all samples.

        Its columns read what each machine sees. They may keep what they fetch in a cache of that
        machine. There is no `population` then.

        Args:
            index: What `index` returned.
        """


@runtime_checkable
class PartlyAvailable(Protocol):
    """A source of which some rows cannot be read yet."""

    def find_available_rows(self, index: Index) -> Rows | None:
        """The rows of the index that can be read now; None if it is all of them.

        Commands that need some samples, but no epoch, use this.

        Raises:
            DataError: No row can be read now.
        """


@runtime_checkable
class Mixing(Protocol):
    """A source that mixes others."""

    def mixture(self, index: Index) -> Mixture | None:
        """The proportions of an epoch."""


@dataclass(frozen=True)
class Mixture:
    """The parts of an index, which follow each other in it, and their proportions in an epoch.

    Attributes:
        names: The names of the parts.
        counts: The number of samples of each part.
        weights: The weight of each part, above 0.
        stop: When an epoch ends: after all samples of the part that is used up first; when all
            parts are used up; or "never", after `loader.epoch_size` samples.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]
    stop: Stop = "first"

    def __str__(self) -> str:
        """Return the proportions as a state has them: a 3, b 1, stop first."""
        parts = zip(self.names, self.weights, strict=True)
        return ", ".join([*(f"{name} {weight:g}" for name, weight in parts), f"stop {self.stop}"])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each part, int64 (parts,)."""
        return np.cumsum([0, *self.counts[:-1]], dtype=np.int64)

    def restrict(self, rows: NDArray[np.int64]) -> Mixture:
        """Return the mixture of chosen rows.

        Args:
            rows: The rows, ascending, int64 (n,).

        Raises:
            DataError: A part has none of them.
        """
        ends = np.searchsorted(rows, np.cumsum(self.counts))
        counts = np.diff(ends, prepend=0).tolist()
        if 0 in counts:
            name = self.names[counts.index(0)]
            raise DataError(f"data.parts.{name}: no sample of it is in loader.subset")
        return replace(self, counts=tuple(counts))

    def count_samples(self, size: int | None) -> NDArray[np.int64]:
        """Return how many samples of each part an epoch has, int64 (parts,).

        Args:
            size: The size of the epoch; None: as `stop` says.

        Raises:
            DataError: A part would have none.
        """
        weights, counts = np.array(self.weights), np.array(self.counts)
        if size is not None:
            found = _divide(size, weights)
        elif self.stop == "first":
            shares = weights * (counts / weights).min()
            found = np.minimum(np.floor(shares + _SLACK).astype(np.int64), counts)
        else:
            shares = weights * (counts / weights).max()
            found = np.maximum(np.ceil(shares - _SLACK).astype(np.int64), counts)
        if not found.all():
            name = self.names[int(np.argmin(found))]
            total = counted(int(found.sum()), "sample")
            raise DataError(
                f"data.parts.{name}.weight: so small that an epoch of {total} has none of it: "
                "make it larger"
            )
        return found


def _divide(size: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divide a number in proportion, with the largest remainders rounded up."""
    shares = size * weights / weights.sum()
    found: NDArray[np.int64] = np.floor(shares + _SLACK).astype(np.int64)
    order = np.argsort(-(shares - found), kind="stable")
    found[order[: size - int(found.sum())]] += 1
    return found


def interleave(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order in which any stretch holds the parts in proportion.

    Each of k parts is within k - 1 samples of its proportion; of two, within a sample.

    Args:
        counts: The number of samples of each part.

    Returns:
        The number of the part at each position, int64 (sum of counts,).
    """
    positions = [(2 * np.arange(count) + 1) / (2 * count) for count in counts]
    parts = np.repeat(np.arange(len(positions)), [len(position) for position in positions])
    order: NDArray[np.int64] = parts[np.argsort(np.concatenate(positions), kind="stable")]
    return order
