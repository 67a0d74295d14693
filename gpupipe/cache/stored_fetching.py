"""Fetches the shards of a store into files, each in parts that are fetched at the same time."""

import os
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from gpupipe.cache.digests import compute_digest
from gpupipe.cache.fetching import FetchStatistics
from gpupipe.cache.listing import UNKNOWN, Listing, StoredFile
from gpupipe.cache.rate_limit import RateLimit
from gpupipe.cache.store import ChangedError, Store, StoreError, UnfetchableError

_PART = 8 << 20
_BLOCK = 1 << 20


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

    def fetch(self, row: int, target: Path) -> bool:
        """Fetch a shard into a file, and return whether that succeeded.

        If not, the reason is in the statistics.

        Args:
            row: The row of the shard in the listing.
            target: The file, which is created, or replaced.
        """
        file = self._listing.get_file(row)
        try:
            self._store.retry(lambda: self._fetch_once(file, target))
        except UnfetchableError as e:
            self._statistics.failed.add(row, f"{file.name}: {e}", isinstance(e, StoreError))
            if isinstance(e, ChangedError):
                self._statistics.changed[row] = str(e)
            return False
        return True

    def _fetch_once(self, file: StoredFile, target: Path) -> None:
        listed = self._store.complete(file)
        if listed.size == UNKNOWN:
            raise OSError("the store does not say how many bytes it has")
        with target.open("wb", buffering=0) as f:
            try:
                self._fetch_parts(listed, f.fileno())
            except StoreError:
                self._store.refuse_change(listed)
                raise
            os.fsync(f.fileno())
        self._store.check(
            listed, target.stat().st_size, lambda kind: compute_digest(kind, _read_blocks(target))
        )

    def _fetch_parts(self, file: StoredFile, target: int) -> None:
        """Fetch all parts of a file, and write them to the open file `target`."""
        begins = list(range(0, file.size, self._part))
        if begins and not self._has_ranges:  # the first part shows whether there can be others
            received = self._fetch_part(file, begins.pop(0), target)
            if received == file.size:
                return
            self._has_ranges = True
        parts = [self._pool.submit(self._fetch_part, file, begin, target) for begin in begins]
        done, pending = wait(parts, return_when=FIRST_EXCEPTION)
        for part in pending:
            part.cancel()
        wait(parts)
        for part in done:
            part.result()

    def _fetch_part(self, file: StoredFile, begin: int, target: int) -> int:
        """Fetch the part of a file that begins at a byte, and write it. Return how much came."""
        end = min(begin + self._part, file.size)
        self._rate_limit.take(end - begin)
        data = self._store.read_range(file.name, begin, end)
        if len(data) > end - begin:  # all of the file, from a server that knows no ranges
            data = data if begin == 0 else data[begin:end]
        view, at = memoryview(data), begin
        while view:
            written = os.pwrite(target, view, at)
            view, at = view[written:], at + written
        self._statistics.bytes += len(data)
        return len(data)


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as f:
        while block := f.read(_BLOCK):
            yield block
