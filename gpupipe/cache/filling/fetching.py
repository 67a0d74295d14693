"""Fetches the samples of a shard at the same time, and keeps account of those that failed.

All processes of a cache share one limit of bytes per second, RateLimit.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gpupipe.cache.commit_log import BrokenRows
from gpupipe.cache.listing import UNKNOWN, Listing
from gpupipe.cache.shard_files import ShardSample
from gpupipe.cache.store import Changed, Store, Unfetchable
from gpupipe.runtime.files import hold_lock

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 30.0, 3600.0
_BURST_SECONDS = 0.5
_MAX_SECONDS, _MAX_FOREIGN_SECONDS = 3600.0, 60.0
"""The longest wait that the file may cause; and if another machine wrote it, or this one before a
reboot.
"""
_FORMAT = struct.Struct("<dd36s")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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


class RateLimit:
    """A rate limit that processes share through a file.

    The file holds until when the bytes taken so far last: in seconds since 1970, in seconds of the
    monotonic clock, and the boot that this clock belongs to. Processes of one boot use the
    monotonic clock, which nobody can set.

    Args:
        path: The file.
        bytes_per_second: The limit; None for no limit.
        pause: Waits a number of seconds.
    """

    def __init__(
        self, path: Path, bytes_per_second: int | None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._path, self._rate, self._pause = path, bytes_per_second, pause
        self._boot = _read_boot_id()

    def take(self, size: int) -> None:
        """Wait until `size` more bytes are within the limit."""
        if self._rate is None:
            return
        with hold_lock(self._path), self._path.open("r+b", buffering=0) as f:
            wait = max(self._remaining_seconds(f.read()), -_BURST_SECONDS) + size / self._rate
            f.seek(0)
            f.write(_FORMAT.pack(time.time() + wait, time.monotonic() + wait, self._boot))
        self._pause(max(0.0, wait))

    def _remaining_seconds(self, stored: bytes) -> float:
        """Return how long the bytes taken so far last; negative if they are through."""
        if len(stored) != _FORMAT.size:  # a new file, or one of an earlier version
            return -_BURST_SECONDS
        until, monotonic_until, boot = _FORMAT.unpack(stored)
        if self._boot.strip(b"\0") and boot == self._boot:
            return float(min(monotonic_until - time.monotonic(), _MAX_SECONDS))
        return float(min(until - time.time(), _MAX_FOREIGN_SECONDS))


def _read_boot_id() -> bytes:
    """Return what identifies the boot of this machine, 36 bytes; zeros if the system does not."""
    try:
        return _BOOT_ID.read_bytes().strip()[:36].ljust(36, b"\0")
    except OSError:
        return bytes(36)
