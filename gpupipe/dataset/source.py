"""The contract Source, and SOURCES, which finds sources by name.

A source lists the samples of a data set and the byte ranges of their fields, as an Index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import pydantic
from pydantic import Field

from gpupipe.dataset.columns import Rows
from gpupipe.dataset.decoded_cache_options import DecodedCacheOptions
from gpupipe.dataset.index import Index
from gpupipe.dataset.mixture import Mixture
from gpupipe.dataset.spec import Spec
from gpupipe.runtime.progress import Progress as Progress  # noqa: PLC0414  # plugins import it from here
from gpupipe.runtime.progress import ignore_progress as ignore_progress  # noqa: PLC0414
from gpupipe.runtime.registry import Registry
from gpupipe.schema.field_types import WHOLE

MAX_PIXELS = 178_956_970
"""Pillow's limit, above which it warns that an image may be a decompression bomb."""
RESERVED_NAMES = ("label", "id")
"""Names in a batch that no field and no value may have."""
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


class Source(pydantic.BaseModel):
    """The base of all sources, a frozen model of the keys under `data:` in the YAML.

    `data.source` names the source. A source NAME is a class in `gpupipe/sources/NAME.py`, or an
    entry point of a plugin.

    Attributes:
        name: The name of the source in the YAML.
        grows: Whether later epochs may have more samples: see `population`.
        separate_files: Whether each image is a file of its own, not a part of a larger file.
        masks: Fields of the kind mask, whose numbers are classes, such as segmentation masks.
            Steps resample them with the nearest pixel, and fill them with 0, or with what `fill`
            has under `mask`.
        max_pixels: Image files of more pixels are broken samples. The header is checked before
            anything is decoded. null means no limit; the default is Pillow's limit.
        cache_decoded: Keep decoded images, {where: memory, max_bytes: 8GB}: what decode, and the
            steps after it that draw nothing, make of each image. null, the default, decodes in
            every epoch.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    grows: ClassVar[bool] = False
    separate_files: ClassVar[bool] = True

    masks: tuple[str, ...] = ()
    max_pixels: Annotated[int, Field(ge=1), WHOLE] | None = MAX_PIXELS
    cache_decoded: DecodedCacheOptions | None = None

    @abstractmethod
    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the samples: return the saved index if it is still valid, else scan the data.

        May download the data first.

        Args:
            progress: Called as the scan proceeds.

        Raises:
            DataError: There are no samples, or the data cannot be read.
            FetchError: The download failed.
        """

    def specs(self) -> dict[str, Spec]:
        """The spec of each field as the source has it, by the field's name.

        By default, steps work on the first field.

        Raises:
            DataError: The data must be read for this, and cannot be.
        """
        return {"image": Spec()}

    def field_specs(self) -> dict[str, Spec]:
        """The spec of each field as the first step gets it, with the kind that the YAML says.

        Raises:
            DataError: The data must be read for this, and cannot be.
        """
        specs = self.specs()
        return specs | {
            name: replace(specs[name], kind="mask") for name in self.masks if name in specs
        }

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
        return None

    def read_through(self, index: Index) -> Index:
        """The index for engines that read the data on other machines, with all samples.

        Its columns read what each machine sees. They may keep what they fetch in a cache of that
        machine. There is no `population` then. By default the index itself, for data under the same
        path on all machines.

        Args:
            index: What `index` returned.
        """
        return index

    def mixture(self, index: Index) -> Mixture | None:
        """The proportions of an epoch, for a source that mixes others; None for all others."""
        return None

    def find_available_rows(self, index: Index) -> Rows | None:
        """The rows of the index that can be read now; None if it is all of them.

        Commands that need some samples, but no epoch, use this.

        Raises:
            DataError: No row can be read now.
        """
        return None

    def explain_absence(self) -> str:
        """Why the data is not there yet ("... will be fetched"); "" if it is there."""
        return ""


def check_names(fields: Sequence[str], values: Sequence[str]) -> None:
    """Raise ValueError if a name of a field or value is empty, taken or used twice."""
    every = [*fields, *values]
    for name in every:
        if name in RESERVED_NAMES or not name or every.count(name) > 1:
            raise ValueError(
                f"'{name}' cannot be the name of a field or value: names are not empty, "
                f"none stands twice, and none is {' or '.join(RESERVED_NAMES)}"
            )


SOURCES = Registry("source", "gpupipe.sources", Source)
