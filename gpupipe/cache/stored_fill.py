"""Caches the shards of a store as they are: fetches a shard, and indexes it."""

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import evict, file_parts, sample_ids, shard_members, stored_table
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.fetching import RowSelection
from gpupipe.cache.fill import Filler
from gpupipe.cache.listing import UNKNOWN, Listing, StoredFile
from gpupipe.cache.members_fetching import MembersFetcher
from gpupipe.cache.publishing import FillOutcome, ShardJob, ShardPublisher
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shared_files import CachedShard, disk_size
from gpupipe.cache.store import Store, UnfetchableError
from gpupipe.cache.stored_fetching import ShardFetcher
from gpupipe.cache.stored_formats import create_source, find_format
from gpupipe.cache.stored_table import ShardTable, WrongLabelsError, create_table
from gpupipe.dataset.shards import name_shard
from gpupipe.dataset.source import FilePart
from gpupipe.errors import DataError, NoSamplesError
from gpupipe.runtime.files import sync_file

_FOLDERS = 1 << 16
"""How much the folders and small files of a cache may take."""
_TABLE_SHARE, _MIN_TABLE = 1 / 32, 1 << 16
"""How much is reserved for a table before it is known: a share of the shard, and at least this."""


def row_of(name: str) -> int:
    """Return the row in the listing of the shard with a name."""
    return int(name) - 1


def name_of(row: int) -> str:
    """Return the name in the cache of the shard in a row of the listing."""
    return f"{row + 1:08}"


def _find_rows(shard: CachedShard) -> NDArray[np.int64]:
    return np.array([row_of(shard.name)])


def estimate_bytes(size: int, beside: int = 0) -> int:
    """Return the bytes to reserve for a shard and its table.

    Args:
        size: The bytes of the shard; -1 if unknown.
        beside: About how many bytes are written to a file beside it.
    """
    size = max(size, 0)
    table = max(int(size * _TABLE_SHARE), _MIN_TABLE)
    return disk_size(size) + disk_size(table) + disk_size(beside)


class _NoRoomError(Exception):
    """There is no room for a shard at the moment."""


class StoredShardFiller(ShardPublisher):
    """Fills a cache with the shards of a store. The arguments are its base's."""

    def __init__(self, folder: CacheFolder, dataset: DataSet, store: Store | None = None) -> None:
        super().__init__(folder, dataset, store)
        self._dataset, self._parts = dataset, file_parts.load(folder)
        is_weighted = dataset.weight is not None
        self._selection = RowSelection(folder, self._listing, dataset.seed, is_weighted, _find_rows)
        self._source, connections = create_source(dataset), folder.options.connections
        common = (self._listing, self._store, self._rate_limit, connections, self.statistics)
        members = shard_members.load(folder)
        self._fetcher = MembersFetcher(members, *common) if members else ShardFetcher(*common)
        self._sizes = list_sizes(folder, self._listing, dataset)

    def _claim_missing(self, name: str) -> ShardJob | FillOutcome:
        before = self._folder.commit_log.published[name]
        reserved = disk_size(before.bytes) + disk_size(before.table_bytes)
        if not evict.make_room_for_pinned(self._folder, reserved):
            return "no room"
        return self._claim(name, [row_of(name)], reserved, before)

    def _claim_new(self) -> ShardJob | FillOutcome:
        number, failed = self._folder.commit_log.generation, self.statistics.failed
        rows = self._selection.draw(number, failed, self._find_coming())
        if not len(rows):
            return self._explain_nothing_to_fetch()
        row = int(rows[0])
        reserved = estimate_bytes(*self._sizes[row].tolist())
        if not evict.make_room(self._folder, reserved + disk_size(1)):
            return "no room"
        return self._claim(name_of(row), [row], reserved)

    def _find_coming(self) -> list[int]:
        """Return the rows of shards of which the store was asked for a part.

        Forget the parts of shards that are not listed, or that other workers have published.
        """
        names, parts, rows = self._listing.names, self._store.ranges.parts, list[int]()
        for name in list(parts):
            row = bisect_left(names, name)
            is_listed = row < len(names) and names[row] == name
            if is_listed and name_of(row) not in self._folder.commit_log.published:
                rows.append(row)
            else:
                parts.pop(name).cancel()
        return rows

    def _write(self, job: ShardJob) -> CachedShard | FillOutcome:
        (row,) = job.rows
        try:
            received = self._fetch(job)
        except _NoRoomError:
            return "no room"
        except DataError as e:
            if isinstance(e, WrongLabelsError):  # of the config, and so of every shard
                raise DataError(str(e).replace(str(job.tar), self._name(row))) from e
            why = str(e).removeprefix(f"{job.tar}: ").replace(str(job.tar), self._name(row))
            self.statistics.failed.add(row, f"{self._name(row)}: {why}")
            self.statistics.changed[row] = why
            return "skipped" if job.before is None else self._evict_lost(job, why)
        if received is None:
            return "skipped" if job.before is None else self._evict_lost(job)
        table, unfetched = received
        stored_table.save_table(table, job.table)
        files = [job.tar.with_suffix(ending) for ending in self._folder.shard_endings]
        sizes = [path.stat().st_size for path in files]
        if unfetched:  # the file system may keep no holes, or needs room to say where they are
            sizes[0] = max(sizes[0] - unfetched, files[0].stat().st_blocks * 512)
        need = sum(map(disk_size, [*sizes, job.table.stat().st_size]))
        if need > job.reserved and not self._extend_reservation(job, need):
            return "no room"
        for path in [job.table, *files[1:]]:
            sync_file(path)
        self.statistics.samples += len(table)
        self.statistics.failed.remove(row)
        self.statistics.changed[row] = None
        return CachedShard(
            job.name,
            len(table),
            sum(map(disk_size, sizes[:-1])) + sizes[-1],
            stored_table.hash_files(*files),
            job.table.stat().st_size,
            stored_table.hash_files(job.table),
            0.0,
            unfetched,
        )

    def _fetch(self, job: ShardJob) -> tuple[ShardTable, int] | None:
        """Fetch a shard, and index it. Return its table, and how many bytes of its file are holes.

        Return None if it cannot be fetched. Parts of files have no digest that they could be
        compared with, so one of which something cannot be read is fetched once more.

        Raises:
            DataError: The shard is damaged.
            _NoRoomError: There is no room for it.
        """
        try:
            part = self._find_part(job)
        except UnfetchableError as e:
            self._fetcher.note_failure(job.rows[0], e)
            return None
        try:
            return self._fetch_once(job, part)
        except DataError:
            if part is None:
                raise
            return self._fetch_once(job, part)

    def _fetch_once(self, job: ShardJob, part: FilePart | None) -> tuple[ShardTable, int] | None:
        (row,) = job.rows
        fetched = self._fetcher.fetch(row, job.tar, part)
        if fetched is None:
            return None
        if part is None:
            try:
                index = self._source.index_file(job.tar)
            except NoSamplesError:
                return stored_table.create_empty(), 0
            return create_table(index, self._dataset, job.tar), 0
        assert self._parts is not None
        first = sample_ids.find_number(int(self._parts.first_ids[row]))
        index = self._source.index_part(job.tar, first, part.group)
        if len(index) != part.samples:
            raise DataError(f"{job.tar}: has {len(index):,} rows in place of {part.samples:,}")
        own = sum(len(content) for _, content in part.own)
        unfetched = max(0, job.tar.stat().st_size - fetched - own)
        return create_table(index, self._dataset, job.tar), unfetched

    def _find_part(self, job: ShardJob) -> FilePart | None:
        """Return the part of its file that a shard is; None if it is all of it.

        If the end of the file could not be read when the data set was listed, read it now, take all
        of the file as one part, and reserve room for that.

        Raises:
            DataError: The file is damaged, or the cache is too small for two such shards.
            UnfetchableError: The end of the file cannot be fetched.
            _NoRoomError: There is no room at the moment.
        """
        (row,) = job.rows
        if self._parts is None:
            return None
        if part := self._parts.get(row):
            return part
        file: StoredFile = self._store.retry(
            lambda: self._store.complete(self._listing.get_file(row))
        )
        with name_shard(job.tar):
            if file.size == UNKNOWN:
                raise ValueError("the store does not say how many bytes it has")
            parts = file_parts.cut_stored_file(file, self._source, self._store, math.inf)
        if not parts or job.before is not None:  # it takes what it took before
            return parts[0] if parts else None
        stored = sum(end - begin for begin, end in parts[0].ranges)
        self._sizes[row] = stored, parts[0].beside
        need = estimate_bytes(stored, parts[0].beside)
        if fault := _explain_small_cache(self._folder, 2 * need, "two such shards"):
            raise DataError(f"{job.tar}: {fault}")
        if need > job.reserved and not self._extend_reservation(job, need):
            raise _NoRoomError
        return parts[0]

    def _name(self, row: int) -> str:
        return f"{self._dataset.url}/{self._listing.names[row]}"


def count_bytes_beside(folder: CacheFolder) -> int:
    """Return how many bytes of `max_bytes` shards and their tables cannot take."""
    lists = (folder.listing_path, folder.members_path, folder.parts_path)
    return (
        sum(path.stat().st_size for path in lists if path.exists())
        + evict.headroom_bytes(folder)
        + _FOLDERS
    )


def list_sizes(folder: CacheFolder, listing: Listing, dataset: DataSet) -> NDArray[np.int64]:
    """Return how many bytes each shard takes, and a file beside it, int64 (N, 2); -1 if unknown."""
    if parts := file_parts.load(folder):
        return np.stack([parts.count_stored(), parts.beside], 1)
    has_parts = find_format(dataset).has_parts  # about as large as the file, if images
    return np.stack([listing.sizes, listing.sizes * has_parts], 1)


def refuse_small_cache(folder: CacheFolder, listing: Listing, dataset: DataSet) -> None:
    """Raise DataError if the cache cannot hold the two largest shards, or all that it must hold.

    With one shard alone, the next epoch could not be fetched while an epoch uses it. An epoch that
    waits for `min_shards` must have room for any of that number.
    """
    options, sizes = folder.options, list_sizes(folder, listing, dataset)
    count = len(sizes) if options.epoch == "full" else max(2, options.min_shards)
    largest = sizes[np.argsort(sizes.sum(1))[-count:]]
    needed = sum(estimate_bytes(size, beside) for size, beside in largest.tolist())
    few = "two" if count == 2 else f"{count:,}"
    what = "all shards" if count >= len(sizes) else f"the {few} largest shards"
    if 2 < count == options.min_shards:
        what += " (data.cache.min_shards)"
    if fault := _explain_small_cache(folder, needed, what):
        raise DataError(fault)


def _explain_small_cache(folder: CacheFolder, needed: int, what: str) -> str:
    """Return why a cache cannot hold some shards of `needed` bytes; "" if it can."""
    needed += count_bytes_beside(folder)
    if needed <= folder.options.max_bytes:
        return ""
    return (
        f"{what} take {needed:,} bytes, with what the cache keeps beside them, and "
        f"data.cache.max_bytes is {folder.options.max_bytes:,}: make it larger"
    )


def create_filler(
    folder: CacheFolder, dataset: DataSet, store: Store | None = None
) -> ShardPublisher:
    """Return what fills the cache of a data set. The arguments are those of ShardPublisher."""
    kind = Filler if dataset.shards is None else StoredShardFiller
    return kind(folder, dataset, store)
