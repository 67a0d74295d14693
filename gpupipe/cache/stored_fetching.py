"""Fetches the shards of a store into files, each in parts that are fetched at the same time.

A shard may be some ranges of a file. What is left out between them are holes of the shard's file.
"""

import os
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from gpupipe.cache.digests import compute_digest
from gpupipe.cache.fetching import FetchStatistics
from gpupipe.cache.listing import UNKNOWN, Listing, StoredFile
from gpupipe.cache.range_reader import PART, FetchedRange
from gpupipe.cache.rate_limit import RateLimit
from gpupipe.cache.store import (
    ChangedError,
    Store,
    StoreError,
    UnfetchableError,
)
from gpupipe.dataset.source import FilePart
from gpupipe.runtime.files import write_at

T = TypeVar("T")
R = TypeVar("R")
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
        part: int = PART,
    ) -> None:
        self._listing, self._store, self._rate_limit = listing, store, rate_limit
        self._statistics, self._part = statistics, part
        self._pool = ThreadPoolExecutor(connections)
        self._has_ranges = False
        """Whether the store has sent a part of a file when it was asked for one."""

    def fetch(self, row: int, target: Path, part: FilePart | None = None) -> int | None:
        """Fetch a shard into a file, and return how many of its bytes came, without the holes.

        Return None if that failed. Then the reason is in the statistics.

        Args:
            row: The row of the shard in the listing.
            target: The file, which is created, or replaced.
            part: The part of the file in the store that the shard is; by default, all of it.
        """
        try:
            return self._fetch_shard(row, target, part)
        except UnfetchableError as e:
            self.note_failure(row, e)
            return None

    def note_failure(self, row: int, error: UnfetchableError) -> None:
        """Note in the statistics why a shard cannot be fetched."""
        why = f"{self._listing.names[row]}: {error}"
        self._statistics.failed.add(row, why, isinstance(error, StoreError))
        if isinstance(error, ChangedError):
            self._statistics.changed[row] = str(error)

    def _fetch_shard(self, row: int, target: Path, part: FilePart | None) -> int:
        listed = self._complete(self._listing.get_file(row))
        self._store.ranges.drop_changed_part(listed)
        part = part or FilePart(0, 0, [(0, listed.size)], 0, [], 0)
        try:
            received: int = self._store.retry(lambda: self._fetch_once(listed, target, part))
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

    def _fetch_once(self, file: StoredFile, target: Path, part: FilePart) -> int:
        with target.open("wb", buffering=0) as f:
            versions = self._fetch_ranges(file, part, f.fileno())
            for place, content in part.own:
                write_at(f.fileno(), place, content)
            os.fsync(f.fileno())
        refuse_mixed(versions)
        received = sum(last - first for first, last in part.ranges)
        if received < file.size:
            self._store.check_version(file)
        else:
            self._store.check(
                file,
                target.stat().st_size,
                lambda kind: compute_digest(kind, _read_blocks(target)),
            )
        return received

    def _fetch_ranges(self, file: StoredFile, part: FilePart, target: int) -> set[str]:
        """Fetch the ranges of a part of a file, and write them to the open file `target`.

        Return the versions that came with them.
        """
        is_whole = part.ranges == [(0, file.size)]
        ranges = [
            (first, min(first + self._part, end))
            for begin, end in part.ranges
            for first in range(begin, end, self._part)
        ]

        def fetch(begin: int, end: int) -> tuple[int, str]:
            """Fetch a range. Return how many bytes came, and the file's version."""
            takes_all = is_whole and not begin

            def write(data: bytes | memoryview, place: int) -> None:
                if len(data) > end - begin and not takes_all:
                    data, place = data[begin:end], begin  # a server that knows no ranges sent all
                write_at(target, place - part.shift, data)

            self._rate_limit.take(end - begin)
            count, version = self._store.copy_range(file.name, begin, end, write)
            self._statistics.bytes += count
            return count if takes_all else min(count, end - begin), version

        versions = set[str]()
        if ranges and not self._has_ranges:  # the first one shows whether there can be others
            received, version = fetch(*ranges.pop(0))
            if received == file.size:
                return {version}
            self._has_ranges = True
            versions.add(version)
        fetched = call_for_each(self._pool, lambda one: fetch(*one), ranges)
        return versions | {version for _, version in fetched}

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


def refuse_mixed(versions: Set[str]) -> None:
    """Raise OSError if the parts of a file came with different versions; "" is unknown."""
    if len(versions - {""}) > 1:
        raise OSError(f"it changed while it was fetched ({', '.join(sorted(versions))})")


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as f:
        while block := f.read(BLOCK):
            yield block
