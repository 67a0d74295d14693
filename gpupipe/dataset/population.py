"""Population: the samples of each epoch, for a source whose samples are not always all there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gpupipe.dataset.columns import Rows
from gpupipe.dataset.index import Index

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
