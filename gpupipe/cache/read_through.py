"""Caches single samples of a remote data set on the machine of a Ray worker.

The growing cache serves the epochs of a trainer. A worker on another machine has no epochs: it gets
rows to read. It reads them through a folder on its own machine, which all workers there share. If a
row is not in the folder, the worker fetches the sample from the store and adds it to the folder.

The folder is a `diskcache.Cache`: SQLite lists the samples, and larger samples are files. A killed
process leaves either a whole sample, or a file without an entry in SQLite. A process that opens the
folder while no other process has it open removes such files. Each sample has a checksum.
"""

import hashlib
import os
import secrets
import sqlite3
import struct
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.listing import Listing, StoredFile
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shared_files import disk_size
from gpupipe.cache.store import Store, StoreError, UnfetchableError
from gpupipe.dataset.columns import Column, Rows, StringArray
from gpupipe.errors import EngineError, describe_error
from gpupipe.runtime.file_locks import share_lock, try_lock
from gpupipe.runtime.installation import require_extra

_FOLDER = "samples"
_SHARE = 0.9
"""Share of max_bytes for the samples. The remaining bytes are for SQLite's log, for folders, and
for a sample that is written before another one is evicted.
"""
_MIN_FILE_SIZE = 1 << 14
_LOG_PAGES = 64
"""SQLite writes its log to the database after this many pages, so that the log stays small."""
_LOG_BYTES = _LOG_PAGES * 4096
_DIGEST_SIZE = 16
_HEADER = struct.Struct(f"<{_DIGEST_SIZE}sQ")


@dataclass(frozen=True)
class ReadThroughColumn(Column):
    """The files of a remote data set, each read through a cache on the machine that reads it.

    The column uses only these settings of the cache: `dir`, `max_bytes`, `connections`, `retries`,
    `timeout` and `policy`. Here the policy random works as fifo.

    Attributes:
        dataset: The data set, with the url of the files.
        cache: The settings of the cache. The cache's folder is on the machine that reads.
        names: The path of each row's file under the data set's url.
        sizes: Bytes of each file, int64 (N,); -1 if unknown.
        tags: Hash of each file's version, uint64 (N,); 0 if unknown.
        versions: Each file's version with its kind, such as "ETag 4f2a"; "" if unknown.
    """

    dataset: DataSet
    cache: CacheOptions
    names: StringArray
    sizes: NDArray[np.int64]
    tags: NDArray[np.uint64]
    versions: StringArray

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        """Return the bytes of each of `rows`, uint8 (bytes,); fetch files that are not cached.

        Raises:
            OSError: A file is missing in the store, was changed since it was listed, or may not be
                read.
            EngineError: The store, the network or the cache's disk failed.
        """
        samples = _open_on_this_machine(
            self.dataset.model_dump_json(exclude_unset=True), self.cache, os.getpid()
        )
        wanted = [
            StoredFile(
                self.names[row], int(self.sizes[row]), int(self.tags[row]), self.versions[row]
            )
            for row in rows.tolist()
        ]
        return [np.frombuffer(data, np.uint8) for data in samples.read(wanted)]

    def location(self, row: int, name: str) -> str:
        return f"{self.dataset.url}/{self.names[row]}"

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return []

    def get_sizes(self, rows: Rows) -> list[int | None]:
        return [None if size < 0 else size for size in self.sizes[rows].tolist()]

    @property
    def can_sample(self) -> bool:
        return False  # reading may download

    def take(self, rows: Rows) -> "ReadThroughColumn":
        return replace(
            self,
            names=self.names.take(rows),
            sizes=self.sizes[rows],
            tags=self.tags[rows],
            versions=self.versions.take(rows),
        )


def create_column(dataset: DataSet, cache: CacheOptions, listing: Listing) -> ReadThroughColumn:
    """Return a column with one row for each file of a listing."""
    return ReadThroughColumn(
        dataset, cache, listing.names, listing.sizes, listing.tags, listing.versions
    )


class SampleCache:
    """The cache of one data set's samples on this machine, for all its threads and processes.

    Args:
        dataset: The data set, with the url of the files.
        options: The settings of the cache.

    Raises:
        DataError: No file system of fsspec takes the url, or the package for it is missing.
        EngineError: The folder cannot be used, or the package diskcache is missing.
    """

    def __init__(self, dataset: DataSet, options: CacheOptions) -> None:
        require_extra("remote", ("diskcache",), "a remote data set on Ray workers", EngineError)
        self._store = Store(dataset, options.retries, options.timeout)
        self._threads = ThreadPoolExecutor(options.connections, "gpupipe-fetch")
        name = hashlib.blake2b(dataset.url.encode(), digest_size=8).hexdigest()
        self._folder = options.dir.absolute() / _FOLDER / name
        with self._folder_errors():
            self._kept = _open_folder(self._folder, options)

    def read(self, files: Sequence[StoredFile]) -> list[bytes]:
        """Return the content of files; fetch files that are not cached, several at a time.

        Raises:
            OSError: A file is missing in the store, was changed since it was listed, or may not be
                read.
            EngineError: The store, the network or the disk failed.
        """
        with self._folder_errors():
            contents = [_unwrap(self._kept.get(_get_key(file))) for file in files]
            self._shorten_log()
        missing = [n for n, data in enumerate(contents) if data is None]
        fetched = self._threads.map(self._fetch, [files[n] for n in missing])
        for n, data in zip(missing, fetched, strict=True):
            contents[n] = data
        return [data for data in contents if data is not None]

    def _fetch(self, file: StoredFile) -> bytes:
        """Fetch a file, add it to the folder, and return its content."""
        url = f"{self._store.url}/{file.name}"
        try:
            data = self._store.fetch(file)
        except StoreError as e:
            raise EngineError(
                f"{url}: cannot be fetched: {e}: see data.url, data.storage_options and the network"
            ) from e
        except UnfetchableError as e:
            raise OSError(f"cannot be fetched: {e}") from e
        with self._folder_errors():
            self._kept.set(_get_key(file), _wrap(data))
            self._shorten_log()
        return data

    def _shorten_log(self) -> None:
        """Empty SQLite's log if it has outgrown its limit.

        SQLite starts its log over only at a moment when no thread and no process reads it. While
        many read and write there is no such moment, and the log grows on. This waits for one.
        """
        log = self._folder / "cache.db-wal"
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            with closing(sqlite3.connect(self._folder / "cache.db", timeout=60)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _folder_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and the disk into an EngineError that names the folder."""
        from diskcache import Timeout

        try:
            yield
        except (sqlite3.Error, OSError, Timeout) as e:
            raise EngineError(
                f"{self._folder}: the cache of this machine cannot be used: {describe_error(e)}: "
                "free space there, or set data.cache.dir to a folder that every node can write, "
                "on a disk of its own"
            ) from e


@lru_cache(maxsize=8)
def _open_on_this_machine(dataset: str, options: CacheOptions, process: int) -> SampleCache:
    """Return the SampleCache of a data set; open it at the first call in each process.

    `dataset` is a DataSet as JSON. `process` is the id of this process: because of it, a forked
    child opens a new SampleCache in place of its parent's.
    """
    return SampleCache(DataSet.model_validate_json(dataset), options)


def _open_folder(folder: Path, options: CacheOptions) -> Any:
    """Open the folder as a `diskcache.Cache`.

    Removes files that killed processes left, unless another process has the folder open. As long as
    this process runs, it holds a lock, which shows other processes that the folder is open.
    """
    import diskcache

    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    is_alone = try_lock(lock)
    if not is_alone:
        share_lock(lock)
    kept = diskcache.Cache(
        str(folder),
        disk=_create_disk_class(),
        size_limit=int(options.max_bytes * _SHARE),
        eviction_policy=f"least-recently-{'used' if options.policy == 'lru' else 'stored'}",
        disk_min_file_size=_MIN_FILE_SIZE,
        sqlite_wal_autocheckpoint=_LOG_PAGES,
        sqlite_journal_size_limit=_LOG_BYTES,
    )
    if is_alone:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that killed processes left
            kept.check(fix=True)
        share_lock(lock)
    return kept


def _create_disk_class() -> Any:
    """Return a subclass of diskcache.Disk that reads no pickle and removes incomplete files."""
    import diskcache

    class BytesOnly(diskcache.Disk):  # type: ignore[misc]
        def filename(self, *item: Any) -> tuple[str, str]:
            """Return the relative and the absolute path of a new file, in one of 256 folders."""
            name = secrets.token_hex(16)
            relative = f"{name[:2]}/{name[2:]}.val"
            return relative, os.path.join(self._directory, relative)

        def _write(self, full_path: str, *content: Any) -> Any:
            try:
                return super()._write(full_path, *content)
            except OSError:  # the disk is full
                Path(full_path).unlink(missing_ok=True)
                raise

        def fetch(self, mode: int, filename: str, value: Any, read: bool) -> Any:
            if mode == diskcache.core.MODE_PICKLE:
                raise OSError("a pickle, which gpupipe never writes")  # counts as missing
            return super().fetch(mode, filename, value, read)

        def get(self, key: Any, raw: bool) -> Any:
            return super().get(key, raw=True)

    return BytesOnly


def _get_key(file: StoredFile) -> str:
    """Return a file's key in the cache. If the file's version or size changes, so does the key."""
    return f"{file.tag:016x}:{file.size}:{file.name}"


def _wrap(data: bytes) -> bytes:
    """Return the cache entry of a file: checksum, size, content, padding to whole disk blocks.

    Entries are padded because diskcache counts bytes, not the disk blocks that they take.
    """
    value = _HEADER.pack(_digest(data), len(data)) + data
    return value if len(value) < _MIN_FILE_SIZE else value.ljust(disk_size(len(value)), b"\0")


def _unwrap(value: Any) -> bytes | None:
    """Return the content in a cache entry; None if `value` is no entry, or is damaged."""
    if not isinstance(value, bytes) or len(value) < _HEADER.size:
        return None
    digest, size = _HEADER.unpack_from(value)
    data = value[_HEADER.size : _HEADER.size + size]
    return data if digest == _digest(data) else None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE).digest()
