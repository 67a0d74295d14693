"""remote: a data set in a remote store, read through a local cache that grows with the epochs."""

from __future__ import annotations

import inspect
from typing import ClassVar

import numpy as np

from gpupipe.cache import listing, worker_pool
from gpupipe.cache.cached_epochs import Cached, does_not_fit, here, spans
from gpupipe.cache.folder import CacheFolder, prepared
from gpupipe.cache.rank_agreement import TrainingRun
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shard_files import least_bytes
from gpupipe.dataset.index import Column, Index, Rows, SpanColumn
from gpupipe.dataset.source import Population, Progress, Source, UnmapFiles, quiet
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

    def index(self, progress: Progress = quiet) -> Index:
        folder = prepared(self.cache, self.dataset)
        if not listing.is_there(folder):
            progress("listing", 0, None)
            worker_pool.listed(self.dataset, self.cache)
        return _index(folder, self)

    def population(
        self, index: Index, rank: int, world_size: int, seed: int, unmap_files: UnmapFiles
    ) -> Population | None:
        folder = CacheFolder(self.cache)
        listed = listing.opened(folder)
        if index.fingerprint != listed.fingerprint:
            return None  # The index is a subset: all of its rows are in every epoch.
        whole = int(np.count_nonzero(listed.weights)) if self.weight is not None else len(index)
        run = (
            TrainingRun(folder, rank, [index.fingerprint, seed, world_size])
            if world_size > 1
            else None
        )
        samplers = self.cache.samplers if rank == 0 else 0
        crew = worker_pool.Crew(self.dataset, self.cache, samplers)
        return Cached(folder, _spans(index), whole, crew, run, unmap_files)

    def available(self, index: Index) -> Rows | None:
        folder = CacheFolder(self.cache)
        rows = here(folder, _spans(index))
        if not len(rows):
            raise DataError(
                f"{folder.dir}: nothing is in the cache yet: run 'gpupipe cache fill CONFIG'"
            )
        return rows

    def absent(self) -> str:
        return "" if listing.is_there(CacheFolder(self.cache)) else f"{self.url} will be listed"

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


def _spans(index: Index) -> SpanColumn:
    column = index.columns["image"]
    assert isinstance(column, SpanColumn)
    return column


def _index(folder: CacheFolder, source: Remote) -> Index:
    listed = listing.opened(folder)
    if source.cache.epoch == "full":
        needed = least_bytes(listed.sizes)
        if needed > source.cache.max_bytes:
            raise DataError(
                does_not_fit(folder, f"the whole data set takes at least {needed:,} bytes")
            )
    columns: dict[str, Column] = {"image": spans(folder, len(listed))}
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
