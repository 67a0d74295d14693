"""Fetches the samples of a shard at the same time, and keeps account of those that failed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from gpupipe.cache.commit_log import BrokenRows
from gpupipe.cache.filling.rate_limit import RateLimit
from gpupipe.cache.listing import UNKNOWN, Listing
from gpupipe.cache.shard_files import ShardSample
from gpupipe.cache.store import Changed, Store, Unfetchable

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 30.0, 3600.0


class FailedRows:
    """Rows that could not be fetched, and when to try them again. The pauses double, up to an hour.

    Attributes:
        reasons: Why a sample could not be fetched, by row.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self._retries: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, row: int, why: str) -> None:
        """Record a failure, and when to try the row again."""
        _, last = self._retries.get(row, (0.0, _FIRST_RETRY_SECONDS / 2))
        pause = min(2 * last, _LAST_RETRY_SECONDS)
        self._retries[row] = (time.monotonic() + pause, pause)
        self.reasons[row] = why

    def remove(self, row: int) -> None:
        """Forget a row that was fetched, by this worker or by another one. Idempotent."""
        self._retries.pop(row, None)
        self.reasons.pop(row, None)

    def list_waiting(self) -> list[int]:
        """Return the rows that must not be tried again yet."""
        now = time.monotonic()
        return [row for row, (when, _) in self._retries.items() if when > now]


@dataclass
class FetchStatistics:
    """What a download worker has done so far, and what failed.

    Attributes:
        bytes: Bytes fetched.
        samples: Samples written to shards.
        failed: Samples that could not be fetched.
        changed: What is wrong with samples whose files changed after the listing, by row; None
            for those that were fetched.
        lost: Why an evicted or damaged shard cannot be fetched again, by its name.
    """

    bytes: int = 0
    samples: int = 0
    failed: FailedRows = field(default_factory=FailedRows)
    changed: BrokenRows = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


class Fetcher:
    """Fetches samples from a store with threads.

    Args:
        listing: The rows of the data set.
        store: Where the files are.
        rate_limit: The limit that all workers of the cache share.
        connections: Samples that are fetched at the same time.
        statistics: Counts the bytes, and records failures.
    """

    def __init__(
        self,
        listing: Listing,
        store: Store,
        rate_limit: RateLimit,
        connections: int,
        statistics: FetchStatistics,
    ) -> None:
        self._listing, self._store, self._rate_limit = listing, store, rate_limit
        self._connections, self._statistics = connections, statistics
        self._pool = ThreadPoolExecutor(connections)

    def iter_fetched(
        self, samples: list[ShardSample]
    ) -> Iterator[tuple[ShardSample, bytes | None]]:
        """Yield the samples in order with their bytes, or None if a sample cannot be fetched.

        Up to 2 * connections samples are in flight.
        """
        waiting = iter(samples)
        in_flight: deque[tuple[ShardSample, Future[bytes]]] = deque()
        try:
            while True:
                for sample in islice(waiting, 2 * self._connections - len(in_flight)):
                    in_flight.append((sample, self._pool.submit(self._fetch_one, sample)))
                if not in_flight:
                    return
                sample, future = in_flight.popleft()
                yield sample, self._get_result(sample, future)
        finally:
            for _, future in in_flight:
                future.cancel()

    def _fetch_one(self, sample: ShardSample) -> bytes:
        size = int(self._listing.sizes[sample.row])
        self._rate_limit.take(max(size, 0))
        version_hash, version = (
            int(self._listing.tags[sample.row]),
            self._listing.versions[sample.row],
        )
        data = self._store.fetch(sample.name, size, version_hash, version)
        if size == UNKNOWN:
            self._rate_limit.take(len(data))
        return data

    def _get_result(self, sample: ShardSample, future: Future[bytes]) -> bytes | None:
        try:
            data = future.result()
        except Unfetchable as e:
            self._statistics.failed.add(sample.row, f"{sample.name}: {e}")
            if isinstance(e, Changed):
                self._statistics.changed[sample.row] = str(e)
            return None
        self._statistics.bytes += len(data)
        self._statistics.failed.remove(sample.row)
        self._statistics.changed[sample.row] = None
        return data
