"""Caches the shards of a store as they are: fetches a shard, and indexes it."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import evict, shard_members, stored_table
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.fetching import RowSelection
from gpupipe.cache.file_end import FileEnd, Ranges
from gpupipe.cache.fill import Filler
from gpupipe.cache.listing import Listing
from gpupipe.cache.members_fetching import MembersFetcher
from gpupipe.cache.publishing import FillOutcome, ShardJob, ShardPublisher
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shared_files import CachedShard, disk_size
from gpupipe.cache.store import Store
from gpupipe.cache.stored_fetching import ShardFetcher
from gpupipe.cache.stored_formats import create_source, find_format
from gpupipe.cache.stored_table import ShardTable
from gpupipe.dataset.shards import name_shard
from gpupipe.errors import DataError
from gpupipe.runtime.files import sync_file

_FOLDERS = 1 << 16
"""How much the folders and small files of a cache may take."""
_TABLE_SHARE, _MIN_TABLE = 1 / 32, 1 << 16
"""How much is reserved for a table before it is known: a share of the shard, and at least this."""
_GAP = 1 << 16
"""So many bytes between two needed parts of a file are fetched, too: it saves a request."""


def row_of(name: str) -> int:
    """Return the row in the listing of the shard with a name."""
    return int(name) - 1


def name_of(row: int) -> str:
    """Return the name in the cache of the shard in a row of the listing."""
    return f"{row + 1:08}"


def _find_rows(shard: CachedShard) -> NDArray[np.int64]:
    return np.array([row_of(shard.name)])


def estimate_bytes(size: int) -> int:
    """Return the bytes to reserve for `size` bytes of a shard, -1 if unknown, and its table."""
    size = max(size, 0)
    return disk_size(size) + disk_size(max(int(size * _TABLE_SHARE), _MIN_TABLE))


class _NoRoomError(Exception):
    """There is no room for a shard at the moment."""


class StoredShardFiller(ShardPublisher):
    """Fills a cache with the shards of a store. The arguments are its base's."""

    def __init__(self, folder: CacheFolder, dataset: DataSet, store: Store | None = None) -> None:
        super().__init__(folder, dataset, store)
        self._dataset, self._has_ranges = dataset, find_format(dataset).has_ranges
        is_weighted = dataset.weight is not None
        self._selection = RowSelection(folder, self._listing, dataset.seed, is_weighted, _find_rows)
        self._source, connections = create_source(dataset), folder.options.connections
        common = (self._listing, self._store, self._rate_limit, connections, self.statistics)
        members = shard_members.load(folder)
        self._fetcher = MembersFetcher(members, *common) if members else ShardFetcher(*common)
        self._needs: dict[int, int] = {}
        """The bytes to reserve for shards whose ends told how many columns take, by row."""

    def _claim_missing(self, name: str) -> ShardJob | FillOutcome:
        before = self._folder.commit_log.published[name]
        reserved = disk_size(before.bytes) + disk_size(before.table_bytes)
        if not evict.make_room_for_pinned(self._folder, reserved):
            return "no room"
        return self._claim(name, [row_of(name)], reserved, before)

    def _claim_new(self) -> ShardJob | FillOutcome:
        rows = self._selection.draw(self._folder.commit_log.generation, self.statistics.failed)
        if not len(rows):
            return self._explain_nothing_to_fetch()
        row = int(rows[0])
        size = 0 if self._has_ranges else int(self._listing.sizes[row])
        reserved = self._needs.get(row) or estimate_bytes(size)
        if not evict.make_room(self._folder, reserved + disk_size(1)):
            return "no room"
        return self._claim(name_of(row), [row], reserved)

    def _write(self, job: ShardJob) -> CachedShard | FillOutcome:
        (row,) = job.rows
        try:
            received = self._fetch(job)
        except _NoRoomError:
            return "no room"
        except DataError as e:
            why = str(e).removeprefix(f"{job.tar}: ").replace(str(job.tar), self._name(row))
            self.statistics.failed.add(row, f"{self._name(row)}: {why}")
            self.statistics.changed[row] = why
            return "skipped" if job.before is None else self._evict_lost(job, why)
        if received is None:
            return "skipped" if job.before is None else self._evict_lost(job)
        table, fetched = received
        stored_table.save_table(table, job.table)
        files = [job.tar.with_suffix(ending) for ending in self._folder.shard_endings]
        sizes = [path.stat().st_size for path in files]
        unfetched = sizes[0] - fetched
        if unfetched:  # the file system may keep no holes, or needs room to say where they are
            sizes[0] = max(fetched, files[0].stat().st_blocks * 512)
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
        """Fetch a shard, and index it. Return its table, and how many bytes of its file came.

        Return None if it cannot be fetched. Columns have no digest that they could be compared
        with, so a shard of which something cannot be read is fetched once more.

        Raises:
            DataError: The shard is damaged.
            _NoRoomError: There is no room for it.
        """
        try:
            return self._fetch_once(job)
        except DataError:
            if not self._has_ranges:
                raise
            return self._fetch_once(job)

    def _fetch_once(self, job: ShardJob) -> tuple[ShardTable, int] | None:
        choose = partial(self._choose_ranges, job) if self._has_ranges else None
        fetched = self._fetcher.fetch(job.rows[0], job.tar, choose)
        if fetched is None:
            return None
        return stored_table.index_shard(self._dataset, self._source, job.tar), fetched

    def _choose_ranges(self, job: ShardJob, end: FileEnd) -> Ranges:
        """Return which bytes of a shard to fetch beside its end, and reserve room for all of them.

        Raises:
            DataError: The shard is damaged, or the cache is too small for two such.
            _NoRoomError: There is no room at the moment.
        """
        with name_shard(job.tar):
            needed = self._source.find_needed_bytes(end)
        ranges = end.list_missing(needed.ranges, _GAP)
        fetched = sum(last - first for first, last in ranges) + len(end.data)
        need = estimate_bytes(fetched) + disk_size(needed.beside)
        if job.before is not None:  # it takes what it took before
            return ranges
        if 2 * need + count_bytes_beside(self._folder) > self._folder.options.max_bytes:
            raise DataError(
                f"{job.tar}: {fetched:,} of its bytes are needed, which take {need:,} bytes "
                "unpacked, and data.cache.max_bytes, which must hold two such shards, is "
                f"{self._folder.options.max_bytes:,}: make it larger"
            )
        self._needs[job.rows[0]] = need
        if need > job.reserved and not self._extend_reservation(job, need):
            raise _NoRoomError
        return ranges

    def _name(self, row: int) -> str:
        return f"{self._dataset.url}/{self._listing.names[row]}"


def count_bytes_beside(folder: CacheFolder) -> int:
    """Return how many bytes of `max_bytes` shards and their tables cannot take."""
    lists = [path for path in (folder.listing_path, folder.members_path) if path.exists()]
    return sum(path.stat().st_size for path in lists) + evict.headroom_bytes(folder) + _FOLDERS


def refuse_small_cache(folder: CacheFolder, listing: Listing, dataset: DataSet) -> None:
    """Raise DataError if the cache cannot hold the two largest shards, or all that it must hold.

    With one shard alone, the next epoch could not be fetched while an epoch uses it. How much of a
    shard is needed may only be known when its end is fetched; see `Source.find_needed_bytes`.
    """
    if find_format(dataset).has_ranges:
        return
    is_full = folder.options.epoch == "full"
    sizes = listing.sizes.tolist()
    shards = sizes if is_full else sorted(sizes)[-2:]
    needed = sum(map(estimate_bytes, shards)) + count_bytes_beside(folder)
    if needed > folder.options.max_bytes:
        what = "all shards" if is_full else "the two largest shards"
        raise DataError(
            f"{what} take {needed:,} bytes, with what the cache keeps beside them, and "
            f"data.cache.max_bytes is {folder.options.max_bytes:,}: make it larger"
        )


def create_filler(
    folder: CacheFolder, dataset: DataSet, store: Store | None = None
) -> ShardPublisher:
    """Return what fills the cache of a data set. The arguments are those of ShardPublisher."""
    kind = Filler if dataset.shards is None else StoredShardFiller
    return kind(folder, dataset, store)
