"""The rows that each epoch has, where not all samples of a source are available at all times.

If a source is Growing, a Population chooses the rows of each epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gpupipe.dataset.columns import Rows
from gpupipe.dataset.index import Index

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
            problem: Takes a number of samples; returns why that is not enough, or "" if it is.

        Returns:
            Rows of the index, ascending, int64 (n,).

        Raises:
            DataError: There will never be enough samples.
        """

    @abstractmethod
    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        """Return, without waiting, whether `ids` would return at once.

        If it returns True, the rows of the epoch are chosen and pinned.

        Raises:
            DataError: There will never be enough samples.
        """

    @abstractmethod
    def generation(self, epoch: int) -> int | None:
        """Return the number by which `resume` finds an epoch's rows; None until they are chosen."""

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
