"""remote: a data set in a remote store, read through a local cache that grows with the epochs."""

import inspect
from dataclasses import replace
from typing import ClassVar

import numpy as np

from gpupipe.cache import listing, worker_pool
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.cached_population import CachedPopulation, TrainingRun
from gpupipe.cache.read_through import create_column as create_read_through
from gpupipe.cache.sample_locations import SampleLocations, locate_newest
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shard_column import ShardColumn, create_column
from gpupipe.cache.shard_files import min_shard_bytes
from gpupipe.cache.worker_pool import explain_too_large
from gpupipe.dataset.columns import Column, Rows
from gpupipe.dataset.index import Index
from gpupipe.dataset.population import Population, UnmapFiles
from gpupipe.dataset.source import Progress, Source, ignore_progress
from gpupipe.errors import DataError


class Remote(DataSet, Source):
    # The docstring of DataSet ends in its Attributes.
    __doc__ = f"""{inspect.cleandoc(DataSet.__doc__ or "")}
    cache: The settings of the local cache: {{dir, max_bytes, ...}}.
"""

    name: ClassVar[str] = "remote"
    separate_files: ClassVar[bool] = False

    cache: CacheOptions

    def index(self, progress: Progress = ignore_progress) -> Index:
        folder = prepare_folder(self.cache, self.dataset)
        if not listing.is_listed(folder):
            progress("listing", 0, None)
            worker_pool.list_dataset(self.dataset, self.cache)
        listed = listing.load(folder)
        if self.cache.epoch == "full":
            needed = min_shard_bytes(listed.sizes)
            if needed > self.cache.max_bytes:
                reason = f"the whole data set takes at least {needed:,} bytes"
                raise DataError(explain_too_large(folder, reason))
        columns: dict[str, Column] = {"image": create_column(folder, self.url, listed.sizes)}
        return Index(
            self.url,
            listed.names,
            listed.labels,
            listed.classes,
            columns,
            listed.fingerprint,
            dict(listed.values),
            extra={"cache": str(folder.dir)},
        )

    def population(
        self, index: Index, rank: int, world_size: int, seed: int, unmap_files: UnmapFiles
    ) -> Population | None:
        folder = CacheFolder(self.cache)
        listed = listing.load(folder)
        if index.fingerprint != listed.fingerprint:
            return None  # The index is a subset: all of its rows are in every epoch.
        num_rows = int(np.count_nonzero(listed.weights)) if self.weight is not None else len(index)
        run = None
        if world_size > 1:
            run = TrainingRun(folder, rank, [index.fingerprint, seed, world_size])
        locations = SampleLocations(folder, _shards_of(index), unmap_files)
        count = self.cache.workers if rank == 0 else 0
        workers = worker_pool.WorkerPool(self.dataset, self.cache, count)
        return CachedPopulation(folder, locations, num_rows, workers, run)

    def read_through(self, index: Index) -> Index:
        listed = listing.load(CacheFolder(self.cache))
        if index.fingerprint != listed.fingerprint:
            return index  # a subset, of rows that are in the growing cache
        column = create_read_through(self.dataset, self.cache, listed)
        whole = replace(index, columns={"image": column})
        if self.weight is None or (listed.weights > 0).all():
            return whole
        return whole.subset(np.flatnonzero(listed.weights))

    def find_available_rows(self, index: Index) -> Rows | None:
        folder = CacheFolder(self.cache)
        rows = locate_newest(folder, _shards_of(index))
        if not len(rows):
            raise DataError(
                f"{folder.dir}: nothing is in the cache yet: run 'gpupipe cache fill CONFIG'"
            )
        return rows

    def explain_absence(self) -> str:
        return "" if listing.is_listed(CacheFolder(self.cache)) else f"{self.url} will be listed"

    @property
    def dataset(self) -> DataSet:
        """The options that this source shares with the class DataSet, as a DataSet."""
        names = DataSet.model_fields.keys() & self.model_fields_set
        return DataSet(**{name: getattr(self, name) for name in names})


def _shards_of(index: Index) -> ShardColumn:
    column = index.columns["image"]
    assert isinstance(column, ShardColumn)
    return column
