"""Selects the samples of the next shard, and fetches several at the same time.

The rows are drawn at random, by weight, from those that no worker has fetched. If the cache evicts
rows, no row comes again before all others came. After a failure, a row waits before it is fetched
again.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.listing import UNKNOWN, Listing
from gpupipe.cache.rate_limit import RateLimit
from gpupipe.cache.shard_files import END, ShardSample, load_table
from gpupipe.cache.shared_files import BrokenRows, CachedShard
from gpupipe.cache.store import ChangedError, Store, StoreError, UnfetchableError
from gpupipe.errors import DataError

_MAX_DRAWN_ROWS = 100_000
_MAX_SAMPLES_OF_UNKNOWN_SIZE = 4096
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 30.0, 3600.0


class FailedRows:
    """Rows that could not be fetched, and when to retry each.

    The pause before a retry is 30 s at first, and doubles with each failure, up to an hour.

    Attributes:
        reasons: Why a sample could not be fetched, by row.
        passing: The rows of these whose failure was the network's or the store's own. It has
            refused the others, or has sent what cannot be used.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.passing: set[int] = set()
        self._retries: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, row: int, why: str, is_passing: bool = False) -> None:
        """Record a failure, and when to try the row again."""
        _, last = self._retries.get(row, (0.0, _FIRST_RETRY_SECONDS / 2))
        pause = min(2 * last, _LAST_RETRY_SECONDS)
        self.remove(row)
        self._retries[row] = (time.monotonic() + pause, pause)
        self.reasons[row] = why
        if is_passing:
            self.passing.add(row)

    def remove(self, row: int) -> None:
        """Forget a row that was fetched, by this worker or by another one. Idempotent."""
        self._retries.pop(row, None)
        self.reasons.pop(row, None)
        self.passing.discard(row)

    def list_waiting(self) -> list[int]:
        """Return the rows that must not be tried again yet."""
        now = time.monotonic()
        return [row for row, (when, _) in self._retries.items() if when > now]


@dataclass
class FetchStatistics:
    """Counts the work of a download worker so far, and records failures.

    Attributes:
        bytes: Bytes fetched.
        samples: Samples written to shards.
        failed: Samples that could not be fetched.
        changed: How the files of samples changed after the listing, by row; None for samples
            that were fetched.
        lost: Why an evicted or damaged shard cannot be fetched again, by its name.
        exhausted: The last generation in which the cache lacked only what the store refuses.
    """

    bytes: int = 0
    samples: int = 0
    failed: FailedRows = field(default_factory=FailedRows)
    changed: BrokenRows = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    exhausted: int = -1


class RowSelection:
    """Selects rows that are neither cached nor being fetched.

    The caller of any method must hold `CacheFolder.lock`.

    Args:
        folder: The cache.
        listing: The rows of the data set.
        seed: Seed of the random order in which rows are drawn.
        is_weighted: Whether to draw rows in proportion to the listing's weights.
        find_rows: Returns the rows that a published shard holds; by default those in its table.
    """

    def __init__(
        self,
        folder: CacheFolder,
        listing: Listing,
        seed: int,
        is_weighted: bool,
        find_rows: Callable[[CachedShard], NDArray[np.int64]] | None = None,
    ) -> None:
        self._folder, self._listing, self._seed = folder, listing, seed
        self._find_rows = find_rows or self._read_rows
        self._weights = listing.weights if is_weighted else None
        # Under `grow`, a row of weight 2 comes twice as often, not only earlier.
        has_passes = self._weights is None or folder.options.epoch == "new"
        self._counts = np.zeros(len(listing), np.int32) if has_passes else None
        """How often each row was published, int32 (N,)."""
        self._rows_of_shards: dict[str, NDArray[np.int64]] = {}
        self._generation = -1
        self._is_uncached: NDArray[np.bool_] = np.empty(0, bool)

    def draw(
        self, number: int, failed: FailedRows, preferred: Sequence[int] = ()
    ) -> NDArray[np.int64]:
        """Draw up to 100,000 rows that no worker has cached or is fetching.

        Draws without replacement, with probabilities in proportion to the weights. To do this, it
        sorts rows by an exponential variate divided by the row's weight. Rows that were cached less
        often come first.

        Args:
            number: The number of the shard, which seeds the draw.
            failed: Rows that could not be fetched. `draw` removes those that another worker has
                fetched since.
            preferred: Rows that come before all others, in this order.
        """
        rows = self._list_available(failed)
        if not len(rows):
            return rows
        draw = np.random.default_rng([self._seed, number])
        times = draw.exponential(size=len(rows))
        if self._weights is not None:
            times /= self._weights[rows]
        if self._counts is not None:
            times /= 1 + times  # the same order, within [0, 1)
            times += self._counts[rows]
        for n, row in enumerate(reversed(preferred), 1):
            times[rows == row] = -n
        count = min(len(rows), _MAX_DRAWN_ROWS)
        first = np.argpartition(times, count - 1)[:count]
        return rows[first[np.argsort(times[first])]]

    def _list_available(self, failed: FailedRows) -> NDArray[np.int64]:
        is_available = self._find_uncached().copy()
        for row in [row for row in failed.reasons if not is_available[row]]:
            failed.remove(row)  # another worker fetched it
        claims = self._folder.read_claims().values()
        claimed = {row for claim in claims for row in claim.get("rows", [])}
        is_available[list(claimed)] = False
        is_available[failed.list_waiting()] = False
        rows = np.flatnonzero(is_available)
        if self._counts is not None and (coming := claimed - failed.reasons.keys()):
            # What another worker fetches comes before anything comes once more than that.
            rows = rows[self._counts[rows] <= self._counts[list(coming)].min()]
        return rows

    def _find_uncached(self) -> NDArray[np.bool_]:
        """Return a mask, bool (N,): rows of weight above 0 that the newest generation lacks."""
        log = self._folder.commit_log
        if self._generation != log.generation:
            is_uncached = (
                np.ones(len(self._listing), bool)
                if self._weights is None
                else np.asarray(self._weights) > 0
            )
            before = self._rows_of_shards
            self._rows_of_shards = {
                name: before[name] if name in before else self._find_rows(shard)
                for name, shard in log.live_shards().items()
            }
            for rows in self._rows_of_shards.values():
                is_uncached[rows] = False
            if self._counts is not None:
                self._count_published(self._counts, before)
            self._generation, self._is_uncached = log.generation, is_uncached
        return self._is_uncached

    def _count_published(
        self, counts: NDArray[np.int32], before: dict[str, NDArray[np.int64]]
    ) -> None:
        """Count the rows that were published since the last call.

        `before` are rows of shards that were in the cache then. The table of a shard that was
        evicted long ago may be gone: its rows do not count.
        """
        known = before | self._rows_of_shards
        for shard in self._folder.commit_log.list_published(max(self._generation, 0)):
            if shard.name in known:
                counts[known[shard.name]] += 1
            else:
                with suppress(DataError):
                    counts[self._find_rows(shard)] += 1

    def _read_rows(self, shard: CachedShard) -> NDArray[np.int64]:
        return np.asarray(load_table(self._folder.table_path(shard.name), shard.table_hash)[0])

    def choose_samples(self, rows: NDArray[np.int64]) -> tuple[list[ShardSample], int]:
        """Return the samples of the next shard, and the bytes to reserve for it.

        If a sample's size is unknown, take up to 4,096 samples and reserve at least a whole shard.

        Args:
            rows: The result of `draw`. The first rows are taken first.
        """
        samples: list[ShardSample] = []
        total, shard_size = END, int(self._folder.options.shard_size)
        for row in rows.tolist():
            sample, size = self._listing.get_sample(row), int(self._listing.sizes[row])
            stored_size = sample.stored_size(max(size, 0))
            if (samples and total + stored_size > shard_size) or (
                len(samples) == _MAX_SAMPLES_OF_UNKNOWN_SIZE and size == UNKNOWN
            ):
                break
            samples.append(sample)
            total += stored_size
        is_exact = all(self._listing.sizes[s.row] != UNKNOWN for s in samples)
        return samples, total if is_exact else max(total, shard_size)


class Fetcher:
    """Fetches samples from a store with threads.

    Args:
        listing: The rows of the data set.
        store: The store that has the files.
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
        """Yield each sample, in order, with its bytes, or with None if it cannot be fetched.

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
        file = self._listing.get_file(sample.row)
        self._rate_limit.take(max(file.size, 0))
        data = self._store.fetch(file)
        if file.size == UNKNOWN:
            self._rate_limit.take(len(data))
        return data

    def _get_result(self, sample: ShardSample, future: Future[bytes]) -> bytes | None:
        try:
            data = future.result()
        except UnfetchableError as e:
            is_passing = isinstance(e, StoreError)
            self._statistics.failed.add(sample.row, f"{sample.name}: {e}", is_passing)
            if isinstance(e, ChangedError):
                self._statistics.changed[sample.row] = str(e)
            return None
        self._statistics.bytes += len(data)
        self._statistics.failed.remove(sample.row)
        self._statistics.changed[sample.row] = None
        return data
