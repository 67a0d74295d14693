"""The index of a data set in stored shards, whose samples come and go with their shards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import listing as listings
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.listing import Listing
from gpupipe.cache.maintenance import remove_if_damaged
from gpupipe.cache.sample_locations import Locations
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shared_files import CachedShard
from gpupipe.cache.stored_fill import name_of, row_of
from gpupipe.cache.stored_samples import SampleTable, create_empty
from gpupipe.cache.waiting import explain_exhaustion, is_exhausted, wait_until
from gpupipe.cache.worker_pool import IdleWorker, WorkerPool
from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.dataset.columns import ArrayLayout, Column, Rows, StringArray
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Source
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, counted


@dataclass(frozen=True, kw_only=True)
class GrowingLayout(ArrayLayout):
    """The dtype and shapes of a field of arrays, by the samples' ids.

    Attributes:
        table: The samples that are in the cache.
        name: The name of the field.
    """

    table: SampleTable
    name: str

    def shape_of(self, i: int) -> tuple[int, ...]:
        if self.shape is not None:
            return self.shape
        index, rows = self.table.snapshot.index, self.table.snapshot.find_rows(np.array([i]))
        layout = index.columns[self.name].array
        assert layout is not None
        return layout.shape_of(int(rows[0]))


@dataclass(frozen=True)
class GrowingColumn(Column):
    """A field of all samples of a data set in stored shards, by the samples' ids.

    Attributes:
        table: The samples that are in the cache.
        name: The name of the field.
        layout: The dtype and shape of arrays, as far as all shards have the same.
    """

    table: SampleTable
    name: str
    layout: ArrayLayout | None = None

    @property
    def array(self) -> ArrayLayout | None:
        return self.layout

    def __len__(self) -> int:
        return len(self.table.snapshot.index)

    def _find(self, ids: Rows) -> tuple[Column, Rows]:
        snapshot = self.table.snapshot
        rows = snapshot.find_rows(ids)
        return snapshot.index.columns[self.name], rows

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        column, own = self._find(rows)
        return column.read(own)

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        column, own = self._find(np.array([row]))
        return column.read_ends(int(own[0]), head, tail)

    def location(self, row: int, name: str) -> str:
        return self.table.locate(row)

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return []

    def take(self, rows: Rows) -> Column:
        column, own = self._find(rows)
        return column.take(own)

    def get_sizes(self, rows: Rows) -> list[int | None]:
        column, own = self._find(rows)
        return column.get_sizes(own)

    @property
    def can_sample(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True, repr=False)
class StoredIndex(Index):
    """The index of a data set in stored shards. `len` counts the samples that are in the cache.

    Attributes:
        table: The samples that are in the cache.
        is_labelled: Whether samples have a class.
        idle: The download worker that has listed the data set just now, if one has.
    """

    table: SampleTable
    is_labelled: bool
    idle: IdleWorker | None = None

    def __len__(self) -> int:
        return len(self.table.snapshot.index)

    @property
    def is_growing(self) -> bool:
        return True

    @property
    def has_labels(self) -> bool:
        return self.is_labelled

    def describe_classes(self) -> str:
        if not self.is_labelled:
            return "without labels"
        classes = counted(len(self.classes), "class", "classes")
        return f"in {classes}" if self.classes else "with labels"

    def resolve(self, ids: Rows) -> tuple[Index, Rows]:
        snapshot = self.table.snapshot
        return snapshot.index, snapshot.find_rows(ids)

    def number_chunks(self, ids: Rows | None = None) -> Rows:
        """Return the number of the chunk of each sample, of the first field; see ChunkOrder.

        A sample whose shard has no chunks, or is broken, has a chunk of its own.
        """
        index, rows = self.resolve(self.table.snapshot.ids if ids is None else ids)
        column = index.columns[self.main]
        return column.number_chunks(rows) if isinstance(column, ChunkColumn) else rows

    def ids_of(self, rows: Rows) -> Rows:
        return self.table.snapshot.ids[rows]

    def location(self, i: int, field: str | None = None) -> str:
        return self.table.locate(i)

    def load_newest(self) -> Rows:
        """Make the samples that are in the cache readable, unpinned, and return their ids."""
        return self.table.load_newest()

    def subset(self, rows: Rows) -> Index:
        index, own = self.resolve(rows)
        return index.subset(own)

    def find_whole(self) -> Index:
        """Return the index of all samples of the data set, whose ids are their rows, unpinned.

        Raises:
            DataError: A shard is not in the cache, or there is no sample.
        """
        self.load_newest()
        if (count := self.table.num_loaded) < self.table.num_shards:
            raise DataError(
                f"{count:,} of the {self.table.num_shards:,} shards of data.shards are in the "
                "cache: run 'gpupipe cache fill CONFIG', with a data.cache.max_bytes that holds all"
            )
        index = self.table.snapshot.index
        if not len(index):
            raise DataError(f"{self.root}: no sample in {counted(count, 'shard')}: see data.shards")
        if index.classes or not self.is_labelled:
            return index
        return replace(index, classes=list(map(str, range(int(index.labels.max()) + 1))))


class StoredLocations(Locations):
    """Loads the tables of the shards that epochs use.

    Args:
        folder: The cache.
        table: The samples of these shards.
    """

    def __init__(self, folder: CacheFolder, table: SampleTable) -> None:
        self._folder, self._table = folder, table
        self._in_use: set[str] = set()
        self._broken: set[int] = set()
        self._has_begun = False
        """Whether an epoch has begun."""

    def locate(self, shards: dict[str, CachedShard], broken: Iterable[int] = ()) -> Rows:
        lost = {row for row in broken if name_of(row) not in shards}
        self._has_begun = True
        self._in_use |= shards.keys()
        self._broken |= lost
        self._table.load(self._in_use, self._broken)
        wanted = np.array([*map(row_of, shards), *lost], np.int64)
        return self._table.snapshot.find_ids(wanted)

    def forget(self, names: frozenset[str]) -> None:
        self._in_use -= names
        self._table.forget(names)

    def count_missing(self, shards: dict[str, CachedShard], broken: int) -> int:
        return max(0, self._table.num_shards - len(shards) - broken)

    def explain_wait(self, shards: dict[str, CachedShard], broken: int, missing: int) -> str:
        options, empty = self._folder.options, sum(not shard.samples for shard in shards.values())
        count = len(shards) + broken - empty
        if options.epoch == "full" and missing:
            return (
                f"{count + empty:,} of {self._table.num_shards:,} shards are in the cache, and "
                "data.cache.epoch is full"
            )
        waits = options.epoch == "new" or not self._has_begun
        needed = options.min_shards if waits else 1  # else what is in use may leave no room for it
        if count < max(1, min(needed, count + missing)):
            new = "new " if options.epoch == "new" else ""
            return (
                f"{counted(count, f'{new}shard')} of the {needed:,} of "
                f"data.cache.min_shards are in the cache in {self._folder.dir} yet"
            )
        return ""


def create_index(
    folder: CacheFolder,
    listing: Listing,
    dataset: DataSet,
    specs: Mapping[str, Spec],
    values: Sequence[str],
    is_labelled: bool,
    chunk_bytes: int = 0,
) -> StoredIndex:
    """Return the index of a data set in stored shards, with the samples that are in the cache now.

    Args:
        folder: The cache.
        listing: The shards of the data set.
        dataset: The data set.
        specs: The specs of the fields, by name.
        values: The names of the values.
        is_labelled: Whether samples have a class.
        chunk_bytes: The bytes of decoded chunks that a process keeps, if samples lie in chunks.
    """
    table = SampleTable(folder, listing, dataset, list(specs), chunk_bytes)
    table.load_newest()
    columns: dict[str, Column] = {
        name: GrowingColumn(table, name, _create_layout(table, name, spec))
        for name, spec in specs.items()
    }
    empty = create_empty(listing)
    return StoredIndex(
        dataset.url,
        empty.names,
        empty.labels,
        list(dataset.classes),
        columns,
        listing.fingerprint,
        {name: np.empty(0) for name in values},
        extra={"cache": str(folder.dir)},
        table=table,
        is_labelled=is_labelled,
    )


def _create_layout(table: SampleTable, name: str, spec: Spec) -> ArrayLayout | None:
    """Return the layout of a field of arrays; None for image files."""
    if spec.encoded:
        return None
    shape = tuple(n for n in spec.shape if n is not None)
    is_same = len(shape) == len(spec.shape)
    return GrowingLayout(spec.dtype, shape if is_same else None, table=table, name=name)


def read_one_shard(
    folder: CacheFolder,
    dataset: DataSet,
    read: Callable[[Path], Source],
    idle: IdleWorker | None = None,
) -> Source:
    """Read a shard that is in the cache; fetch one if there is none. Return what has read it.

    A shard that was damaged on the disk is fetched again.

    Args:
        folder: The cache.
        dataset: The data set.
        read: Reads the shard at a path, and returns the source that has.
        idle: A worker that has listed the data set, and may fetch the shard.

    Raises:
        DataError: None can be fetched, or none of them can be read.
    """

    def find() -> Source | str:
        with folder.lock():
            live = folder.commit_log.live_shards()
            present = folder.list_present_shards()
            names = {name for name, shard in live.items() if name in present and shard.samples}
            broken = folder.commit_log.broken_rows()
            nothing_comes = is_exhausted(folder)
        for name in sorted(names):
            try:
                return read(folder.list_shard_paths(name)[0])
            except DataError:
                if not remove_if_damaged(folder, live[name]):
                    raise
        if broken and not names:
            row, why = next(iter(broken.items()))
            raise DataError(f"{dataset.url}/{listings.load(folder).names[row]}: {why}")
        if nothing_comes:
            why = explain_exhaustion(folder)
            raise DataError(f"the shape of arrays is in the shards, and {why}")
        return "no shard is in the cache"

    if not isinstance(source := find(), str):
        return source
    pool = WorkerPool(dataset, folder.options, min(folder.options.workers, 1), "one", idle)
    try:
        return wait_until(folder, [pool], "the shape of arrays is in the shards", find)
    finally:
        pool.stop()
