"""The samples of the stored shards that are in use, by their ids; see sample_ids.py."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import stored_table
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.listing import Listing
from gpupipe.cache.sample_ids import find_number, join_ids, list_first_ids, split_ids
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shard_column import NO_SHARD
from gpupipe.cache.stored_chunks import StoredChunkColumn
from gpupipe.cache.stored_column import StoredColumn, forget_checked
from gpupipe.cache.stored_fill import name_of, row_of
from gpupipe.cache.stored_table import ChunkedField, FieldTable, ShardTable
from gpupipe.dataset.annotation_columns import AnnotationColumn, join_annotations
from gpupipe.dataset.annotation_faults import join_faults
from gpupipe.dataset.chunk_column import ChunkTable
from gpupipe.dataset.columns import ArrayLayout, Column, Rows, StringArray, join_strings
from gpupipe.dataset.file_columns import join_layouts
from gpupipe.dataset.index import Index, build_empty
from gpupipe.errors import DataError
from gpupipe.formats.stored_arrays import join_rows


@dataclass(frozen=True)
class Snapshot:
    """The samples of some shards, in the order of their ids.

    Attributes:
        shards: The rows of the shards in the listing, ascending, int64 (S,).
        first_ids: The id of the first sample of each of them, int64 (S,).
        starts: The first row of each shard in `index`, and the number of all rows, int64 (S + 1,).
        index: The samples.
    """

    shards: NDArray[np.int64]
    first_ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    index: Index

    def find_rows(self, ids: Rows) -> Rows:
        """Return the rows of samples in `index`. Raises ValueError if one is not in it."""
        if not len(self.shards):
            if len(ids):
                raise ValueError("the cache has no samples")
            return ids
        at, numbers = split_ids(ids, self.first_ids)
        if not ((numbers >= 0) & (numbers < np.diff(self.starts)[at])).all():
            raise ValueError("a sample whose shard is not in the cache, or that it does not have")
        rows: Rows = self.starts[at] + numbers
        return rows

    @property
    def ids(self) -> Rows:
        """The ids of all samples, ascending, int64 (N,)."""
        return join_ids(self.first_ids, np.diff(self.starts))

    def find_ids(self, shards: NDArray[np.int64]) -> Rows:
        """Return the ids of the samples of shards in these rows of the listing, ascending."""
        chosen = np.isin(self.shards, shards)
        return join_ids(self.first_ids[chosen], np.diff(self.starts)[chosen])


class SampleTable:
    """The samples of the shards that epochs use, which change between epochs.

    Args:
        folder: The cache.
        listing: The shards of the data set.
        dataset: The data set.
        columns: The names of the fields.
        chunk_bytes: The bytes of decoded chunks that a process keeps, if samples lie in chunks.
    """

    def __init__(
        self,
        folder: CacheFolder,
        listing: Listing,
        dataset: DataSet,
        columns: Sequence[str],
        chunk_bytes: int = 0,
    ) -> None:
        self._folder, self._listing, self._dataset = folder, listing, dataset
        self._columns, self._chunk_bytes = columns, chunk_bytes
        self._root = str(folder.dir / "shards")
        self._first_ids = list_first_ids(folder, listing)
        self._tables: dict[int, ShardTable] = {}
        none = np.empty(0, np.int64)
        self.snapshot = Snapshot(none, none, np.zeros(1, np.int64), create_empty(listing))

    @property
    def num_shards(self) -> int:
        """The number of shards that may be fetched."""
        weights = self._listing.weights
        return int(np.count_nonzero(weights)) if len(weights) else len(self._listing)

    @property
    def num_loaded(self) -> int:
        """The number of shards that are loaded, with those that have no samples."""
        return len(self._tables)

    def load(self, shards: Iterable[str], broken: Iterable[int]) -> None:
        """Make the samples of some shards readable, and no others.

        Args:
            shards: The names of published shards.
            broken: The rows of broken shards, each of which has one sample that cannot be read.

        Raises:
            DataError: The table of a shard is damaged.
        """
        # A shard that is fetched again has the same table as before.
        tables = {
            row_of(name): self._tables.get(row_of(name))
            or stored_table.load_table(self._folder.table_path(name))
            for name in shards
        }
        self._tables = tables
        lost = dict.fromkeys(set(broken) - tables.keys())
        tables = {row: table for row, table in tables.items() if len(table)}
        rows = np.array(sorted([*tables, *lost]), np.int64)
        model = next(iter(tables.values()), None)
        every = [tables.get(row) or self._describe_broken(row, model) for row in rows.tolist()]
        starts = np.cumsum([0, *map(len, every)], dtype=np.int64)
        if not len(rows):
            index = create_empty(self._listing)
        else:
            index = self._join(rows, every, np.array([row in lost for row in rows.tolist()]))
        self.snapshot = Snapshot(rows, self._first_ids[rows], starts, index)

    def load_newest(self) -> Rows:
        """Load the shards that are in the cache at the moment, which are not pinned.

        Returns:
            The ids of their samples, ascending, int64 (n,).
        """
        with self._folder.lock():
            present = self._folder.list_present_shards()
            self.load(self._folder.commit_log.live_shards().keys() & present, ())
        return self.snapshot.ids

    def _join(
        self, rows: NDArray[np.int64], tables: list[ShardTable], is_lost: NDArray[np.bool_]
    ) -> Index:
        counts = np.array([len(table) for table in tables])
        starts = np.cumsum(counts) - counts
        ids = join_ids(self._first_ids[rows], counts)
        file = np.repeat(np.where(is_lost, NO_SHARD, rows + 1), counts).astype(np.int32)
        whole = [table for table, lost in zip(tables, is_lost.tolist(), strict=True) if not lost]
        columns: dict[str, Column] = {}
        for name in self._columns:
            parts = [table.fields[name] for table in tables]
            spans = [part for part in parts if isinstance(part, FieldTable)]
            layout = _join_arrays(tables, name, is_lost) if whole else None
            if len(spans) < len(parts):
                columns[name] = self._join_chunks(parts, layout, rows, is_lost)
                continue
            length = np.concatenate([part.length for part in spans])
            columns[name] = StoredColumn(
                self._root,
                self._listing.names,
                file,
                np.concatenate([part.offset for part in spans]),
                length,
                layout,
                checksum=np.concatenate([part.checksum for part in spans]),
                sizes=length,
                cache=self._folder.options,
                url=self._dataset.url,
                num_rows=len(self._listing),
                rows=ids,
                first_ids=self._first_ids,
                ending=self._folder.shard_endings[-1],
            )
        return Index(
            self._dataset.url,
            join_strings([table.names for table in tables]),
            np.concatenate([table.labels for table in tables]),
            list(self._dataset.classes),
            columns,
            self._listing.fingerprint,
            {n: np.concatenate([t.values[n] for t in tables]) for n in tables[0].values},
            annotations=join_annotations([table.annotations for table in tables]),
            sizes={n: np.concatenate([t.sizes[n] for t in tables]) for n in tables[0].sizes},
            faults=join_faults([table.faults for table in tables], starts.tolist()),
        )

    def _join_chunks(
        self,
        parts: Sequence[FieldTable | ChunkedField],
        layout: ArrayLayout | None,
        rows: NDArray[np.int64],
        is_lost: NDArray[np.bool_],
    ) -> Column:
        """Return the column of a field of which some shards have chunks.

        `rows` are the shards, and those of `is_lost` are broken: their sample is in no chunk.
        """
        chunked = [part.as_chunks() if isinstance(part, FieldTable) else part for part in parts]
        joined = join_rows([part.rows for part in chunked], [1] * len(chunked))
        ending, counts = self._folder.shard_endings[-1], [len(part.rows.row) for part in chunked]
        return StoredChunkColumn(
            self._root,
            StringArray.from_strings(f"{name_of(row)}{ending}" for row in rows.tolist()),
            self._listing.names.take(rows),
            ChunkTable(joined.grids, joined.places),
            joined.grid,
            joined.first,
            joined.row,
            np.repeat(np.arange(len(chunked), dtype=np.int32), counts),
            self._chunk_bytes,
            layout,
            checksum=np.concatenate([part.checksum for part in chunked]),
            shards=rows,
            is_broken=is_lost,
            cache=self._folder.options,
            url=self._dataset.url,
        )

    def locate(self, id: int) -> str:
        """Return where a sample is, for messages: URL/SHARD:NAME."""
        snapshot = self.snapshot
        try:
            (row,) = snapshot.find_rows(np.array([id])).tolist()
        except ValueError:
            (shard,), _ = split_ids(np.array([id]), self._first_ids)
            return f"{self._dataset.url}/{self._listing.names[shard]}:{find_number(id)}"
        return snapshot.index.location(row)

    def forget(self, names: Iterable[str]) -> None:
        """Forget which samples of some shards were checked: their files may be replaced."""
        forget_checked(self._root, map(row_of, names))

    def _describe_broken(self, row: int, model: ShardTable | None) -> ShardTable:
        """Return the table of a broken shard: one sample that cannot be read.

        `model` is the table of another shard, which says what a sample has.
        """
        one = np.ones(1, np.int64)
        lost = FieldTable(one - 1, one, np.zeros(1, np.uint32), None)
        table = ShardTable(
            StringArray.from_strings([self._listing.names[row]]),
            one - 1,
            dict.fromkeys(self._columns, lost),
        )
        if model is None:
            return table
        return replace(
            table,
            labels=np.minimum(model.labels[:1], 0),
            values={name: np.zeros_like(array[:1]) for name, array in model.values.items()},
            annotations=_take_nothing(model.annotations),
            sizes={name: np.zeros_like(array[:1]) for name, array in model.sizes.items()},
        )


def create_empty(listing: Listing) -> Index:
    """Return an index without samples of the data set of a listing."""
    return replace(build_empty(), fingerprint=listing.fingerprint)


def _take_nothing(columns: Mapping[str, AnnotationColumn]) -> dict[str, AnnotationColumn]:
    """Return columns of one sample without annotations."""
    return {
        name: replace(
            column,
            values=column.values[:0],
            offsets=None if column.offsets is None else np.zeros(2, np.int64),
        )
        for name, column in columns.items()
    }


def _join_arrays(
    tables: Sequence[ShardTable], name: str, is_lost: NDArray[np.bool_]
) -> ArrayLayout | None:
    """Return the layout of a field of all shards; None for image files.

    Samples of broken shards, which cannot be read, get the shape of another one.

    Raises DataError if shards differ in dtype or number of axes.
    """
    whole = [n for n, lost in enumerate(is_lost.tolist()) if not lost]
    first = tables[whole[0]].fields[name].array
    layouts = [first if lost else tables[n].fields[name].array for n, lost in enumerate(is_lost)]
    try:
        return join_layouts(layouts, [len(table) for table in tables])
    except ValueError as e:
        raise DataError(f"data.shards: the field '{name}' of all shards must be {e}") from e
