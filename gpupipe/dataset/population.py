"""Chooses the samples of an epoch for sources whose epochs do not simply have all samples.

A Population chooses the samples of each epoch of a source whose samples are not all available yet.
A Mixture computes how many samples an epoch takes from each part of a mixed data set, and
`interleave` computes their order.
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
"""Tolerance for rounding errors: 0.3 / 0.1 is 2.9999999999999996, and should count as 3."""
UnmapFiles = Callable[[set[int]], None]
"""A function that unmaps memory-mapped files. It takes their positions in SpanColumn.files."""


class Population(ABC):
    """The samples of each epoch, for a source whose samples are not all available at all times.

    The first call of `ids` or `is_ready` that finds enough samples chooses the epoch's samples and
    pins them. Pinned samples stay readable until `release` or `close`.
    """

    @abstractmethod
    def ids(self, epoch: int, problem: Callable[[int], str]) -> Rows:
        """Wait until enough samples are available, and return the rows of an epoch.

        The first call for an epoch chooses its rows and pins them.

        Args:
            epoch: The epoch.
            problem: Returns why a number of samples is not enough, or "" if it is enough.

        Returns:
            Rows of the index, ascending, int64 (n,).

        Raises:
            DataError: There will never be enough samples.
        """

    @abstractmethod
    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        """Whether `ids` would return at once. Does not wait.

        If it returns True, the rows of the epoch are chosen and pinned.

        Raises:
            DataError: There will never be enough samples.
        """

    @abstractmethod
    def generation(self, epoch: int) -> int | None:
        """Return the number from which `resume` restores the rows; None if none are chosen yet."""

    @abstractmethod
    def resume(self, epoch: int, generation: int) -> None:
        """Choose and pin the same rows for an epoch as an earlier process did.

        Args:
            epoch: The epoch.
            generation: The number that `generation` returned for this epoch.

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
    """A source whose later epochs may have more samples than earlier ones."""

    def population(
        self, index: Index, rank: int, world_size: int, seed: int, unmap_files: UnmapFiles
    ) -> Population | None:
        """Return the Population for one rank's loader; None if every epoch has all samples.

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
    """A source whose data other machines read through other columns than this machine."""

    def read_through(self, index: Index) -> Index:
        """Return the index for engines that read the data on other machines.

        It has all samples. Its columns work on every machine, and may cache there the samples that
        they fetch. Such engines do not use `population`.

        Args:
            index: The index that the source's `index` returned.
        """


@runtime_checkable
class PartlyAvailable(Protocol):
    """A source that may have rows that cannot be read yet."""

    def find_available_rows(self, index: Index) -> Rows | None:
        """Return the rows of the index that can be read now; None if all rows can.

        Commands that need a few samples, but no epoch, call this.

        Raises:
            DataError: No row can be read now.
        """


@runtime_checkable
class Mixing(Protocol):
    """A source that mixes the samples of several sources."""

    def mixture(self, index: Index) -> Mixture | None:
        """Return the proportions of the parts in an epoch; None if an epoch has all samples."""


@dataclass(frozen=True)
class Mixture:
    """The parts of an index, which follow each other in it, and their proportions in an epoch.

    Attributes:
        names: The names of the parts.
        counts: The number of samples of each part.
        weights: The weight of each part, above 0.
        stop: When an epoch ends. "first": as soon as one part is used up; "all": when every part
            is used up; "never": after `loader.epoch_size` samples.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]
    stop: Stop = "first"

    def __str__(self) -> str:
        """Return the text that a loader state stores, such as "a 3, b 1, stop first"."""
        parts = zip(self.names, self.weights, strict=True)
        return ", ".join([*(f"{name} {weight:g}" for name, weight in parts), f"stop {self.stop}"])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each part, int64 (parts,)."""
        return np.cumsum([0, *self.counts[:-1]], dtype=np.int64)

    def restrict(self, rows: NDArray[np.int64]) -> Mixture:
        """Return the mixture of some rows: each part then counts only those among its samples.

        Args:
            rows: The rows of the index, ascending, int64 (n,).

        Raises:
            DataError: A part has none of these rows.
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
            size: The number of samples of the epoch; None if `stop` determines it.

        Raises:
            DataError: The epoch would have no sample of a part.
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
    """Split `size` into integers in proportion to `weights`; round the largest remainders up."""
    shares = size * weights / weights.sum()
    found: NDArray[np.int64] = np.floor(shares + _SLACK).astype(np.int64)
    order = np.argsort(-(shares - found), kind="stable")
    found[order[: size - int(found.sum())]] += 1
    return found


def interleave(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order of samples in which every stretch holds the parts in proportion.

    In a stretch, each of k parts is within k - 1 samples of its share; within one if k is 2.

    Args:
        counts: The number of samples of each part.

    Returns:
        The number of the part at each position, int64 (sum of counts,).
    """
    positions = [(2 * np.arange(count) + 1) / (2 * count) for count in counts]
    parts = np.repeat(np.arange(len(positions)), [len(position) for position in positions])
    order: NDArray[np.int64] = parts[np.argsort(np.concatenate(positions), kind="stable")]
    return order
