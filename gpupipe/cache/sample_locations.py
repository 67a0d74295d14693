"""Finds the samples of cached shards, and writes their locations into the index's column."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import shard_files
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.shard_column import NO_SHARD, ShardColumn, forget_checked
from gpupipe.dataset.columns import Rows, StringArray
from gpupipe.dataset.population import UnmapFiles
from gpupipe.errors import DataError


class ShardNames(StringArray):
    """File names of shards, computed and not stored: shard n is the file 0000000n.tar.

    Shards may thus be added at any time.
    """

    def __getitem__(self, i: int) -> str:
        return f"{i:08}.tar"


def create_column(folder: CacheFolder, url: str, sizes: NDArray[np.int64]) -> ShardColumn:
    """Return a column of all samples of a data set, with all locations still 0.

    Args:
        folder: The cache.
        url: The data set's url.
        sizes: Bytes of each file in the store, int64 (N,); -1 if unknown.
    """
    root, rows = str(folder.dir / "shards"), len(sizes)
    forget_checked(root, rows)
    return ShardColumn(
        root,
        ShardNames.from_strings([]),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        checksum=np.zeros(rows, np.uint32),
        sizes=sizes,
        cache=folder.options,
        url=url,
        num_rows=rows,
    )


def locate_newest(folder: CacheFolder, spans: ShardColumn) -> Rows:
    """Write the locations of the newest generation's samples into a column. Pins nothing.

    Args:
        folder: The cache.
        spans: The column to write to, from `create_column`.

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
    """Write the locations of a shard's samples into `spans`, and return their rows.

    Raises DataError if the shard's table is damaged.
    """
    table = folder.table_path(shard.name)
    rows: Rows
    rows, offset, length, checksum = shard_files.load_table(table, shard.table_hash)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(spans.file):
        raise DataError(
            f"{table}: holds rows that the data set has not: run 'gpupipe cache verify CONFIG'"
        )
    spans.file[rows], spans.offset[rows], spans.length[rows] = int(shard.name), offset, length
    spans.checksum[rows] = checksum
    return rows


def _inode(path: Path) -> int:
    """Return the inode of a shard's file; 0 if it is missing. Readers then request a refetch."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


class SampleLocations:
    """The locations of the samples of the shards that epochs use.

    Args:
        folder: The cache.
        spans: Column in which the locations are written.
        unmap_files: Unmaps the files of shards, which are about to be removed or replaced.
    """

    def __init__(self, folder: CacheFolder, spans: ShardColumn, unmap_files: UnmapFiles) -> None:
        self._folder, self._spans, self._unmap_files = folder, spans, unmap_files
        self._rows: dict[str, Rows] = {}
        self._inodes: dict[str, int] = {}
        self._shards_overlap = False

    def locate(self, shards: dict[str, CachedShard], broken: Iterable[int] = ()) -> Rows:
        """Write the locations of all samples of the shards, and return their ids, ascending.

        Reads only tables of new or replaced shards. If a sample is in several shards, reads the
        tables of all shards in order, so that the newest shard of the sample counts.

        Args:
            shards: The shards of a pinned generation by name, in the order of publication.
            broken: Rows of broken samples. A row that is in a shard does not count as broken.

        Raises:
            DataError: The table of a shard is damaged.
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
        num_located = np.count_nonzero(is_located)
        if num_located < sum(s.samples for s in shards.values()) and not self._shards_overlap:
            self._shards_overlap = True
            return self.locate(shards, broken)
        self._mark_broken([row for row in broken if not is_located[row]])
        is_located[list(broken)] = True
        return np.flatnonzero(is_located)

    def _mark_broken(self, rows: list[int]) -> None:
        """Make reads of `rows` fail, except of rows in shards that an epoch still uses."""
        in_use = {int(name) for name in self._inodes}
        lost = [row for row in rows if int(self._spans.file[row]) not in in_use]
        self._spans.file[lost], self._spans.length[lost] = NO_SHARD, 1

    def forget(self, names: frozenset[str]) -> None:
        """Unmap the files of shards that no epoch uses any more."""
        self._unmap_files({int(name) for name in names})
        for name in names:
            self._rows.pop(name, None)
            self._inodes.pop(name, None)
