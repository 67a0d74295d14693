"""remote: a data set in a remote store, read through a local cache that grows with the epochs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import listing, worker_pool
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.cached_population import CachedPopulation
from gpupipe.cache.rank_agreement import TrainingRun
from gpupipe.cache.read_through import create_column
from gpupipe.cache.sample_locations import SampleLocations, create_span_column, locate_newest
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shard_files import min_shard_bytes
from gpupipe.cache.waiting import explain_too_large
from gpupipe.dataset.columns import Column, Rows, SpanColumn
from gpupipe.dataset.index import Index, spans_of
from gpupipe.dataset.source import Population, Progress, Source, UnmapFiles, ignore_progress
from gpupipe.errors import DataError


class Remote(DataSet, Source):
    # The docstring of DataSet ends in its Attributes.
    __doc__ = f"""{inspect.cleandoc(DataSet.__doc__ or "")}
    cache: The local cache: {{dir, max_bytes, ...}}.
"""

    name: ClassVar[str] = "remote"
    grows: ClassVar[bool] = True
    separate_files: ClassVar[bool] = False

    cache: CacheOptions

    def index(self, progress: Progress = ignore_progress) -> Index:
        folder = prepare_folder(self.cache, self.dataset)
        if not listing.is_listed(folder):
            progress("listing", 0, None)
            worker_pool.list_dataset(self.dataset, self.cache)
        return _index(folder, self)

    def population(
        self, index: Index, rank: int, world_size: int, seed: int, unmap_files: UnmapFiles
    ) -> Population | None:
        folder = CacheFolder(self.cache)
        listed = listing.load(folder)
        if index.fingerprint != listed.fingerprint:
            return None  # The index is a subset: all of its rows are in every epoch.
        num_rows = int(np.count_nonzero(listed.weights)) if self.weight is not None else len(index)
        run = (
            TrainingRun(folder, rank, [index.fingerprint, seed, world_size])
            if world_size > 1
            else None
        )
        locations = SampleLocations(folder, spans_of(index, "image"), unmap_files)
        count = self.cache.workers if rank == 0 else 0
        workers = worker_pool.WorkerPool(self.dataset, self.cache, count)
        return CachedPopulation(folder, locations, num_rows, workers, run)

    def read_through(self, index: Index) -> Index:
        listed = listing.load(CacheFolder(self.cache))
        if index.fingerprint != listed.fingerprint:
            return index  # a subset, of rows that are in the growing cache
        column = create_column(self.dataset, self.cache, listed)
        whole = replace(index, columns={"image": column})
        if self.weight is None or (listed.weights > 0).all():
            return whole
        return whole.subset(np.flatnonzero(listed.weights))

    def find_available_rows(self, index: Index) -> Rows | None:
        folder = CacheFolder(self.cache)
        rows = locate_newest(folder, spans_of(index, "image"))
        if not len(rows):
            raise DataError(
                f"{folder.dir}: nothing is in the cache yet: run 'gpupipe cache fill CONFIG'"
            )
        return rows

    def explain_absence(self) -> str:
        return "" if listing.is_listed(CacheFolder(self.cache)) else f"{self.url} will be listed"

    @property
    def dataset(self) -> DataSet:
        """The options of this source, without those of the cache."""
        return DataSet(
            **{
                name: getattr(self, name)
                for name in DataSet.model_fields
                if name in self.model_fields_set
            }
        )


def _index(folder: CacheFolder, source: Remote) -> Index:
    listed = listing.load(folder)
    if source.cache.epoch == "full":
        needed = min_shard_bytes(listed.sizes)
        if needed > source.cache.max_bytes:
            raise DataError(
                explain_too_large(folder, f"the whole data set takes at least {needed:,} bytes")
            )
    spans = create_span_column(folder, len(listed))
    columns: dict[str, Column] = {
        "image": CachedColumn(
            spans.root, spans.files, spans.file, spans.offset, spans.length, sizes=listed.sizes
        )
    }
    return Index(
        source.url,
        listed.names,
        listed.labels,
        listed.classes,
        columns,
        listed.fingerprint,
        dict(listed.values),
        extra={"cache": str(folder.dir)},
    )


@dataclass(frozen=True)
class CachedColumn(SpanColumn):
    """The files of a remote data set, as byte ranges of the shards that the cache has of them.

    Attributes:
        sizes: Bytes of each file in the store, int64 (N,); -1 if unknown.
    """

    sizes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def get_sizes(self, rows: Rows) -> list[int | None]:
        """Return the sizes of the listing: which rows are in the cache changes."""
        return [None if size < 0 else size for size in self.sizes[rows].tolist()]

    @property
    def can_sample(self) -> bool:
        return False  # a row may not be in the cache

    def take(self, rows: Rows) -> CachedColumn:
        spans = super().take(rows)
        return CachedColumn(
            spans.root,
            spans.files,
            spans.file,
            spans.offset,
            spans.length,
            sizes=self.sizes[rows],
        )
