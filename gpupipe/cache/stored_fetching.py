"""Fetches the shards of a store into files, each in parts that are fetched at the same time.

If only some columns of a shard are needed, the rest of its file is left out: the file has holes.
"""

import os
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from gpupipe.cache.digests import compute_digest
from gpupipe.cache.fetching import FetchStatistics
from gpupipe.cache.file_end import FileEnd, Ranges
from gpupipe.cache.listing import UNKNOWN, Listing, StoredFile
from gpupipe.cache.rate_limit import RateLimit
from gpupipe.cache.store import (
    ChangedError,
    FetchedRange,
    Store,
    StoreError,
    UnfetchableError,
)
from gpupipe.runtime.files import write_at

T = TypeVar("T")
R = TypeVar("R")
_PART = 8 << 20
BLOCK = 1 << 20


class ShardFetcher:
    """Fetches shards from a store, each with several connections. A failed part is fetched again.

    Args:
        listing: The shards of the data set, one a row.
        store: The store that has them.
        rate_limit: The limit that all workers of the cache share.
        connections: Parts that are fetched at the same time.
        statistics: Counts the bytes, and records failures.
        part: Bytes of a part.
    """

    def __init__(
        self,
        listing: Listing,
        store: Store,
        rate_limit: RateLimit,
        connections: int,
        statistics: FetchStatistics,
        part: int = _PART,
    ) -> None:
        self._listing, self._store, self._rate_limit = listing, store, rate_limit
        self._statistics, self._part = statistics, part
        self._pool = ThreadPoolExecutor(connections)
        self._has_ranges = False
        """Whether the store has sent a part of a file when it was asked for one."""

    def fetch(
        self, row: int, target: Path, choose: Callable[[FileEnd], Ranges] | None = None
    ) -> int | None:
        """Fetch a shard into a file, and return how many of its bytes came, without the holes.

        Return None if that failed. Then the reason is in the statistics.

        Args:
            row: The row of the shard in the listing.
            target: The file, which is created, or replaced.
            choose: Returns the ranges to fetch beside the end that it has read; by default, the
                shard is fetched whole. What it raises, `fetch` raises.
        """
        file = self._listing.get_file(row)
        try:
            return self._fetch_shard(row, target, choose)
        except UnfetchableError as e:
            self._statistics.failed.add(row, f"{file.name}: {e}", isinstance(e, StoreError))
            if isinstance(e, ChangedError):
                self._statistics.changed[row] = str(e)
            return None

    def _fetch_shard(
        self, row: int, target: Path, choose: Callable[[FileEnd], Ranges] | None
    ) -> int:
        return self._fetch_file(self._listing.get_file(row), target, choose)

    def _fetch_file(
        self, file: StoredFile, target: Path, choose: Callable[[FileEnd], Ranges] | None
    ) -> int:
        listed = self._complete(file)
        end = FileEnd(listed.size, lambda begin, end: self._read(listed, begin, end))
        try:
            ranges = [(0, listed.size)] if choose is None else choose(end)
            self._has_ranges |= 0 < end.begin < listed.size
            received: int = self._store.retry(lambda: self._fetch_once(listed, target, ranges, end))
        except StoreError:
            self._store.refuse_change(listed)
            raise
        return received

    def _complete(self, file: StoredFile) -> StoredFile:
        """Return a file with its size and version, which the store is asked for if unknown.

        Raises:
            UnfetchableError: The store does not tell its size.
        """
        listed: StoredFile = self._store.retry(lambda: self._store.complete(file))
        if listed.size == UNKNOWN:
            raise StoreError("the store does not say how many bytes it has")
        return listed

    def _fetch_once(self, file: StoredFile, target: Path, ranges: Ranges, end: FileEnd) -> int:
        with target.open("wb", buffering=0) as f:
            write_at(f.fileno(), end.begin, end.data)
            etags = self._fetch_ranges(file, ranges, f.fileno()) | end.etags
            os.fsync(f.fileno())
        refuse_mixed(etags)
        received = sum(last - first for first, last in ranges) + len(end.data)
        if received < file.size:
            self._store.check_version(file)
        else:
            self._store.check(
                file,
                target.stat().st_size,
                lambda kind: compute_digest(kind, _read_blocks(target)),
            )
        return received

    def _fetch_ranges(self, file: StoredFile, ranges: Ranges, target: int) -> set[str]:
        """Fetch ranges of a file, and write them to the open file `target`. Return the ETags."""
        parts = [
            (first, min(first + self._part, end))
            for begin, end in ranges
            for first in range(begin, end, self._part)
        ]
        etags = set[str]()
        if parts and not self._has_ranges:  # the first part shows whether there can be others
            received, etag = self._fetch_part(file, *parts.pop(0), target)
            if received == file.size:
                return {etag}
            self._has_ranges = True
            etags.add(etag)
        fetched = call_for_each(
            self._pool, lambda part: self._fetch_part(file, *part, target), parts
        )
        return etags | {etag for _, etag in fetched}

    def _fetch_part(self, file: StoredFile, begin: int, end: int, target: int) -> tuple[int, str]:
        """Fetch bytes of a file, and write them. Return how many came, and the file's ETag."""
        data, etag = self._read(file, begin, end)
        if len(data) > end - begin:  # all of the file, from a server that knows no ranges
            data = data if begin == 0 else data[begin:end]
        write_at(target, begin, data)
        return len(data), etag

    def _read(self, file: StoredFile, begin: int, end: int) -> FetchedRange:
        """Fetch bytes of a file; all of it from a server that knows no ranges."""
        self._rate_limit.take(end - begin)
        result = self._store.read_range(file.name, begin, end)
        self._statistics.bytes += len(result.data)
        return result


def call_for_each(
    pool: ThreadPoolExecutor, call: Callable[[T], R], arguments: Sequence[T]
) -> list[R]:
    """Return `call` of each argument, called by the threads of a pool."""
    futures = [pool.submit(call, argument) for argument in arguments]
    done, pending = wait(futures, return_when=FIRST_EXCEPTION)
    for future in pending:
        future.cancel()
    wait(futures)
    for future in done:
        future.result()  # raises what the first one did, before those that were cancelled
    return [future.result() for future in futures]


def refuse_mixed(etags: Set[str]) -> None:
    """Raise OSError if the parts of a file came with different ETags."""
    if len(etags - {""}) > 1:
        raise OSError(f"it changed while it was fetched (ETags {', '.join(sorted(etags))})")


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as f:
        while block := f.read(BLOCK):
            yield block
