"""remote: A data set in a remote store, read through a local cache that grows with the epochs."""

import inspect
import logging
from collections.abc import Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import PrivateAttr, ValidationInfo, field_validator, model_validator

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.cached_population import CachedPopulation
from gpupipe.cache.listing import Listing
from gpupipe.cache.read_through import create_column as create_read_through
from gpupipe.cache.sample_locations import Locations, SampleLocations, locate_newest
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shard_column import ShardColumn, create_column
from gpupipe.cache.shard_files import min_shard_bytes
from gpupipe.cache.stored_fill import refuse_small_cache
from gpupipe.cache.stored_formats import create_error, create_source, find_format
from gpupipe.cache.stored_index import StoredIndex, StoredLocations, create_index, read_one_shard
from gpupipe.cache.training_run import TrainingRun
from gpupipe.cache.waiting import explain_too_large
from gpupipe.cache.worker_pool import IdleWorker, WorkerPool, list_dataset
from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.dataset.columns import Column, Rows
from gpupipe.dataset.index import Index
from gpupipe.dataset.population import Population, UnmapFiles
from gpupipe.dataset.source import Progress, Source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError
from gpupipe.sampling.chunk_order import ChunkOrder
from gpupipe.sources.helpers.array_stores import DEFAULT_BUFFER, ArrayStoreSource

_log = logging.getLogger("gpupipe")
_NOWHERE = "/dev/null/shards"
"""No file can be there: a source that must read one for its specs fails."""


class Remote(DataSet, Source):
    # The docstring of DataSet ends in its Attributes.
    __doc__ = f"""{inspect.cleandoc(DataSet.__doc__ or "")}
    cache: The settings of the local cache: {{dir, max_bytes, ...}}.
"""

    name: ClassVar[str] = "remote"
    separate_files: ClassVar[bool] = False

    cache: CacheOptions

    _shard_source: Source | None = PrivateAttr(None)

    @field_validator("cache")
    @classmethod
    def _check_sizes(cls, cache: CacheOptions, info: ValidationInfo) -> CacheOptions:
        if info.data.get("shards") is None:
            cache.check_shard_size()
            if "min_shards" in cache.model_fields_set:
                raise ValueError("min_shards: of a store in shards: see data.shards")
        return cache

    @model_validator(mode="after")
    def _check_shards(self) -> "Remote":
        if self.shards is not None:
            create_source(self)
            if "shard_size" in self.cache.model_fields_set and not find_format(self).is_sized:
                raise create_error(
                    "cache",
                    "shard_size: the shards of data.shards are cached as they are: leave it out",
                )
            if self.cache_decoded is not None:
                raise ValueError(
                    "cache_decoded: of data.shards, which come and go, no images are kept: leave "
                    "it out"
                )
        return self

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        if self.shards is None:
            return super().list_names()
        return create_source(self).list_names()

    def specs(self) -> dict[str, Spec]:
        """Return the spec of each field. May fetch a shard, if only its arrays show their shape.

        Raises:
            DataError: The shape of arrays is needed, and no shard can be read.
        """
        if self.shards is None:
            return super().specs()
        try:
            return create_source(self, _NOWHERE).specs()
        except DataError:
            return self._read_one_shard().specs()

    def _read_one_shard(self) -> Source:
        """Return a source that has read a shard; may fetch the shard.

        Raises:
            DataError: No shard can be read.
        """
        if self._shard_source is None:
            folder, _, idle = self._open_folder()
            self._shard_source = read_one_shard(folder, self.dataset, self._read_shard, idle)
        return self._shard_source

    def _read_shard(self, shard: Path) -> Source:
        source = create_source(self, escape(str(shard)))
        source.index_file(shard)
        source.end_children()
        return source

    def annotation_specs(self) -> dict[str, Spec]:
        return {} if self.shards is None else create_source(self).annotation_specs()

    def _open_folder(
        self, progress: Progress = ignore_progress
    ) -> tuple[CacheFolder, Listing, IdleWorker | None]:
        """Return the cache's folder, the listing, and the worker that made it if there was none."""
        folder, idle = prepare_folder(self.cache, self.dataset), None
        if not listing.is_listed(folder):
            progress("listing", 0, None)
            idle = list_dataset(self.dataset, self.cache)
        return folder, listing.load(folder), idle

    def index(self, progress: Progress = ignore_progress) -> Index:
        folder, listed, idle = self._open_folder(progress)
        if self.shards is not None:
            return self._index_shards(folder, listed, idle)
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

    def _index_shards(self, folder: CacheFolder, listed: Listing, idle: IdleWorker | None) -> Index:
        """Return the index of the samples in stored shards, those in the cache at the moment."""
        refuse_small_cache(folder, listed, self.dataset)
        source = create_source(self)
        _, values = source.list_names()
        specs = self.specs()
        chunk_bytes = int(source.chunk_cache) if isinstance(source, ArrayStoreSource) else 0
        index = create_index(
            folder, listed, self.dataset, specs, values, source.is_labelled, chunk_bytes
        )
        return replace(index, idle=idle)

    # --- ChunkOrdered

    @property
    def is_ordered_by_chunks(self) -> bool:
        return self.options.get("order") == "chunks"

    def chunk_order(self, index: Index) -> ChunkOrder | None:
        """Return the order of the samples by the chunks of stored shards.

        Chunks of a later shard may be too large for the cache of chunks. Then a warning names it.

        Raises:
            DataError: The cache of chunks cannot hold the buffer of the shards that are there.
        """
        source = create_source(self)
        assert isinstance(source, ArrayStoreSource)
        if not isinstance(index, StoredIndex):
            return None  # of a conversion, which reads samples in their order
        # Not as many as fit, or ranks that read different shards would have different orders.
        buffer, warned = source.buffer or DEFAULT_BUFFER, set[str]()

        def explain_large_chunks() -> str:
            present = index.table.snapshot.index
            return source.explain_large_chunks(present, buffer, "data.options")

        if fault := explain_large_chunks():
            raise DataError(fault)
        column = index.table.snapshot.index.columns.get(index.main)
        if column is not None and not (isinstance(column, ChunkColumn) and column.shares_chunks):
            _log.warning(
                "gpupipe: data.options.order: chunks changes nothing for the shards that are in "
                "the cache so far: their samples share no chunks (%s)",
                self.url,
            )

        def number_chunks(ids: Rows | None) -> Rows:
            if (fault := explain_large_chunks()) and fault not in warned:
                warned.add(fault)
                _log.warning("gpupipe: chunks are decoded again and again: %s", fault)
            return index.number_chunks(ids)

        return ChunkOrder(number_chunks, buffer)

    def population(
        self, index: Index, rank: int, world_size: int, seed: int, unmap_files: UnmapFiles
    ) -> Population | None:
        folder = CacheFolder(self.cache)
        listed = listing.load(folder)
        if index.fingerprint != listed.fingerprint:
            return None  # The index is a subset: all of its rows are in every epoch.
        count = self.cache.workers if rank == 0 else 0
        num_rows = int(np.count_nonzero(listed.weights)) if self.weight is not None else len(index)
        run = None
        if world_size > 1:
            run = TrainingRun(folder, rank, [index.fingerprint, seed, world_size])
        locations: Locations
        if isinstance(index, StoredIndex):
            locations, idle = StoredLocations(folder, index.table), index.idle
        else:
            locations = SampleLocations(folder, _shards_of(index), unmap_files, num_rows)
            idle = None
        workers = WorkerPool(self.dataset, self.cache, count, idle=idle)
        return CachedPopulation(folder, locations, workers, run)

    def read_through(self, index: Index) -> Index:
        if self.shards is not None:
            raise DataError(
                "data.shards: engine ray reads single files of a store, and no shards: use another "
                "engine, or one cache for each trainer"
            )
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
        rows = (
            index.load_newest()
            if isinstance(index, StoredIndex)
            else locate_newest(folder, _shards_of(index))
        )
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
