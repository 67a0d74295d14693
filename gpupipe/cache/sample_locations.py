"""Writes into a ShardColumn where the samples of cached shards are."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.shard_column import NO_SHARD, ShardColumn
from gpupipe.cache.shard_files import load_table
from gpupipe.cache.shared_files import CachedShard
from gpupipe.dataset.columns import Rows
from gpupipe.dataset.population import UnmapFiles
from gpupipe.errors import DataError


def locate_newest(folder: CacheFolder, spans: ShardColumn) -> Rows:
    """Write the locations of the samples that the cache holds at the moment into `spans`.

    The samples are not pinned, so their shards may be evicted afterwards.

    Returns:
        The rows of these samples, ascending, int64 (n,).

    Raises:
        DataError: The table of a shard is damaged.
    """
    with folder.lock():
        present = folder.list_present_shards()
        rows_of_shards = [
            _locate_shard(folder, spans, shard)
            for name, shard in folder.commit_log.live_shards().items()
            if name in present
        ]
    rows: Rows = np.unique(np.concatenate([np.empty(0, np.int64), *rows_of_shards]))
    return rows


def _locate_shard(folder: CacheFolder, spans: ShardColumn, shard: CachedShard) -> Rows:
    """Write the locations of a shard's samples into `spans`, and return the samples' rows."""
    table = folder.table_path(shard.name)
    rows, offset, length, checksum = load_table(table, shard.table_hash)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(spans.file):
        raise DataError(
            f"{table}: holds rows that the data set has not: run 'gpupipe cache verify CONFIG'"
        )
    spans.file[rows], spans.offset[rows], spans.length[rows] = int(shard.name), offset, length
    spans.checksum[rows] = checksum
    return np.asarray(rows)


def _inode(path: Path) -> int:
    """Return the inode of a shard's file; 0 if the file is missing.

    A missing file is no error here: whoever reads a sample of it has the shard fetched again.
    """
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


class Locations(Protocol):
    """Locates the samples of the shards that epochs use."""

    def locate(self, shards: dict[str, CachedShard], broken: Iterable[int] = ()) -> Rows:
        """Locate the samples of shards, so that engines can read them.

        Args:
            shards: The shards of a pinned generation by name, in the order of publication.
            broken: Broken rows of the listing. A row that is in a shard does not count as broken.

        Returns:
            The ids of the samples and of what is broken, ascending, int64 (n,).

        Raises:
            DataError: The table of a shard is damaged.
        """

    def forget(self, names: frozenset[str]) -> None:
        """Forget the shards `names`, which no epoch uses any more."""

    def count_missing(self, shards: dict[str, CachedShard], broken: int) -> int:
        """Return how many samples or shards of the data set are neither in `shards` nor broken."""

    def explain_wait(self, shards: dict[str, CachedShard], broken: int, missing: int) -> str:
        """Return why an epoch must wait for more than these shards; "" if it need not.

        Args:
            shards: The shards that it would have.
            broken: The number of broken rows that it would have.
            missing: What `count_missing` returns for all shards in the cache.
        """


class SampleLocations(Locations):
    """Writes into a column where the samples are, for the shards that epochs use.

    Args:
        folder: The cache.
        spans: The column to write to.
        unmap_files: Unmaps files of shards, given the shards' numbers. Called if a file was
            replaced, or if no epoch uses the shard any more.
        rows: Number of rows that can be fetched.
    """

    def __init__(
        self, folder: CacheFolder, spans: ShardColumn, unmap_files: UnmapFiles, rows: int = 0
    ) -> None:
        self._folder, self._spans, self._unmap_files = folder, spans, unmap_files
        self._num_rows = rows
        self._rows: dict[str, Rows] = {}
        self._inodes: dict[str, int] = {}
        self._shards_overlap = False

    def locate(self, shards: dict[str, CachedShard], broken: Iterable[int] = ()) -> Rows:
        """Write the locations of the shards' samples into the column; see Locations.

        As long as no sample is in several shards, this reads only the tables of new or replaced
        shards. After that it reads all tables in order, so that a sample's newest shard counts.
        """
        inodes = {name: _inode(self._folder.shard_path(name)) for name in shards}
        self._unmap_files(
            {int(name) for name, inode in inodes.items() if self._inodes.get(name, inode) != inode}
        )
        is_located = np.zeros(len(self._spans.file), bool)
        for name, shard in shards.items():
            if self._shards_overlap or self._inodes.get(name) != inodes[name]:
                self._rows[name] = _locate_shard(self._folder, self._spans, shard)
            is_located[self._rows[name]] = True
        self._inodes |= inodes
        samples = sum(shard.samples for shard in shards.values())
        if np.count_nonzero(is_located) < samples and not self._shards_overlap:
            self._shards_overlap = True
            return self.locate(shards, broken)
        # Make reads of broken rows fail, except of rows in shards that an epoch still uses.
        in_use = [int(name) for name in self._inodes]
        rows = np.array([row for row in broken if not is_located[row]], np.int64)
        lost = rows[~np.isin(self._spans.file[rows], in_use)]
        self._spans.file[lost], self._spans.length[lost] = NO_SHARD, 1
        is_located[rows] = True
        return np.flatnonzero(is_located)

    def forget(self, names: frozenset[str]) -> None:
        """Unmap the files of the shards `names`, which no epoch uses any more."""
        self._unmap_files({int(name) for name in names})
        for name in names:
            self._rows.pop(name, None)
            self._inodes.pop(name, None)

    def count_missing(self, shards: dict[str, CachedShard], broken: int) -> int:
        return max(0, self._num_rows - sum(shard.samples for shard in shards.values()) - broken)

    def explain_wait(self, shards: dict[str, CachedShard], broken: int, missing: int) -> str:
        samples = sum(shard.samples for shard in shards.values()) + broken
        if self._folder.options.epoch == "full" and missing:
            return (
                f"{samples:,} of {self._num_rows:,} samples are in the cache, and "
                "data.cache.epoch is full"
            )
        new = "new " if self._folder.options.epoch == "new" else ""
        return "" if samples else f"nothing {new}is in the cache in {self._folder.dir} yet"
