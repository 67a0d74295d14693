"""Caches the shards of a store as they are: fetches a shard, and indexes it."""

import os
from glob import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import evict, stored_table
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.fetching import RowSelection
from gpupipe.cache.fill import Filler
from gpupipe.cache.listing import Listing
from gpupipe.cache.publishing import FillOutcome, ShardJob, ShardPublisher
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shared_files import CachedShard, disk_size
from gpupipe.cache.store import Store
from gpupipe.cache.stored_fetching import ShardFetcher
from gpupipe.cache.stored_formats import create_source, find_format
from gpupipe.errors import DataError

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


def estimate_bytes(size: int, has_parts: bool = False) -> int:
    """Return the bytes to reserve for a shard of `size` bytes, -1 if unknown, and its table.

    With `has_parts`, also for a file of the same size beside it.
    """
    size = max(size, 0)
    return disk_size(size) * (1 + has_parts) + disk_size(max(int(size * _TABLE_SHARE), _MIN_TABLE))


class StoredShardFiller(ShardPublisher):
    """Fills a cache with the shards of a store. The arguments are its base's."""

    def __init__(self, folder: CacheFolder, dataset: DataSet, store: Store | None = None) -> None:
        super().__init__(folder, dataset, store)
        self._dataset, self._has_parts = dataset, find_format(dataset).has_parts
        is_weighted = dataset.weight is not None
        self._selection = RowSelection(folder, self._listing, dataset.seed, is_weighted, _find_rows)
        connections = folder.options.connections
        self._fetcher = ShardFetcher(
            self._listing, self._store, self._rate_limit, connections, self.statistics
        )

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
        reserved = estimate_bytes(int(self._listing.sizes[row]), self._has_parts)
        if not evict.make_room(self._folder, reserved + disk_size(1)):
            return "no room"
        return self._claim(name_of(row), [row], reserved)

    def _write(self, job: ShardJob) -> CachedShard | FillOutcome:
        (row,) = job.rows
        if not self._fetcher.fetch(row, job.tar):
            return "skipped" if job.before is None else self._evict_lost(job)
        try:
            source = create_source(self._dataset, escape(str(job.tar)))
            if not self._reserve(job, source.count_part_bytes(job.tar)):
                return "no room"
            table = stored_table.index_shard(self._dataset, source, job.tar)
        except DataError as e:
            why = str(e).removeprefix(f"{job.tar}: ").replace(str(job.tar), self._name(row))
            self.statistics.failed.add(row, f"{self._name(row)}: {why}")
            self.statistics.changed[row] = why
            return "skipped" if job.before is None else self._evict_lost(job, why)
        stored_table.save_table(table, job.table)
        files = [job.tar.with_suffix(ending) for ending in self._folder.shard_endings]
        sizes = [path.stat().st_size for path in files]
        need = sum(map(disk_size, [*sizes, job.table.stat().st_size]))
        if need > job.reserved and not self._extend_reservation(job, need):
            return "no room"
        for path in [job.table, *files[1:]]:
            _sync(path)
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
        )

    def _reserve(self, job: ShardJob, parts: int) -> bool:
        """Reserve bytes for a file beside a shard, and return whether there is room."""
        need = estimate_bytes(job.tar.stat().st_size) + disk_size(parts)
        return not parts or need <= job.reserved or self._extend_reservation(job, need)

    def _name(self, row: int) -> str:
        return f"{self._dataset.url}/{self._listing.names[row]}"


def refuse_small_cache(folder: CacheFolder, listing: Listing) -> None:
    """Raise DataError if the cache cannot hold the two largest shards, or all that it must hold.

    With one shard alone, the next epoch could not be fetched while an epoch uses it.
    """
    is_full = folder.options.epoch == "full"
    sizes = listing.sizes.tolist()
    shards = sizes if is_full else sorted(sizes)[-2:]
    beside = folder.listing_path.stat().st_size + evict.headroom_bytes(folder) + _FOLDERS
    has_parts = len(folder.shard_endings) > 1
    needed = sum(estimate_bytes(size, has_parts) for size in shards) + beside
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


def _sync(path: Path) -> None:
    with path.open("rb") as f:
        os.fsync(f.fileno())
