"""The work of a download worker: draw samples that are not cached, fetch them, publish a shard."""

from __future__ import annotations

import errno
import shutil
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import evict, shard_files
from gpupipe.cache.claims import Claim
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.disk import on_disk
from gpupipe.cache.folder import CacheFolder
from gpupipe.cache.listing import UNKNOWN, Listing
from gpupipe.cache.rate import Rate
from gpupipe.cache.shard_files import ShardSample
from gpupipe.cache.store import Store, Unfetchable

Outcome = Literal["published", "complete", "no room", "disk full", "failed"]
_MOST_SAMPLES = 100_000
_OF_UNKNOWN_SIZE = 4096
_CHANGED = "its samples are others in the store than when it was made"
_RETRY_FIRST, _RETRY_LAST = 30.0, 3600.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Tally:
    """What a download worker has done so far, and what failed.

    Attributes:
        bytes: Bytes fetched.
        samples: Samples written to shards.
        failed: Why a sample could not be fetched, by row.
        lost: Why an evicted or damaged shard cannot be fetched again, by its name.
    """

    bytes: int = 0
    samples: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


@dataclass
class _Order:
    """A shard to make: its claim, its samples, and its record if it was published before."""

    name: str
    claim: Claim
    reserved: int
    samples: list[ShardSample]
    before: CachedShard | None = None


class Filler:
    """Fills a cache with samples from a store, one shard at a time.

    Args:
        folder: The cache.
        listing: The rows of the data set.
        store: Where the files are.
        seed: Seed of the order in which samples are drawn.
        weighted: Whether to draw samples in proportion to the listing's weights.

    Attributes:
        tally: What this object has fetched so far, and what failed.
    """

    def __init__(
        self, folder: CacheFolder, listing: Listing, store: Store, seed: int, weighted: bool
    ) -> None:
        self._folder, self._listing, self._store, self._seed = folder, listing, store, seed
        self._weights = listing.weights if weighted else None
        self._options = folder.options
        self._rate = Rate(folder.dir / "rate", self._options.rate_limit)
        self._pool = ThreadPoolExecutor(self._options.connections)
        self._rows: dict[str, NDArray[np.int64]] = {}
        self._seen = -1
        self._mask: NDArray[np.bool_] = np.empty(0, bool)
        self._retry: dict[int, tuple[float, float]] = {}
        self.tally = Tally()

    def step(self, fresh: bool = True) -> Outcome:
        """Publish one shard.

        Args:
            fresh: Whether to draw new samples if no published shard is missing.

        Returns:
            "published", or why nothing was published: "complete" if every sample is cached, "no
            room" if the cache is full, "disk full", or "failed" if samples could not be fetched.
        """
        try:
            order = self._order(fresh)
            return order if isinstance(order, str) else self._carried_out(order)
        except OSError as e:
            if e.errno not in _DISK_FULL:
                raise
            return "disk full"

    # --- choosing the samples of a shard

    def _order(self, fresh: bool) -> _Order | Outcome:
        """Claim the next shard: a missing one first, else one of new samples."""
        folder = self._folder
        with folder.lock():
            folder.tidy()
            for name in folder.missing():
                if name not in self.tally.lost:
                    return self._refetch(name)
            rows = self._drawn() if fresh else np.empty(0, np.int64)
            if not len(rows):
                return "failed" if self._retry else "complete"
            samples, cost = self._choose_samples(rows)
            reserve = on_disk(cost) + on_disk(shard_files.table_size(len(samples)))
            if not evict.make_room(folder, reserve + on_disk(len(samples) * 12)):
                return "no room"
            return self._claim(self._next_name(), samples, reserve)

    def _refetch(self, name: str) -> _Order | Outcome:
        """Claim a published shard whose file is gone."""
        before = self._folder.manifest.known[name]
        table = shard_files.open_table(self._folder.table(name), before.table_hash)
        samples = [self._listing.sample(int(row)) for row in table[0]]
        reserve = on_disk(before.bytes) + on_disk(before.table_bytes)
        if not evict.make_room_for_pinned(self._folder, reserve):
            return "no room"
        return self._claim(name, samples, reserve, before)

    def _claim(
        self, name: str, samples: list[ShardSample], reserve: int, before: CachedShard | None = None
    ) -> _Order | Outcome:
        if shutil.disk_usage(self._folder.dir).free < reserve:
            return "disk full"
        claim = self._folder.claim(
            "claims", name, {"reserved": reserve, "rows": [s.row for s in samples]}
        )
        return _Order(name, claim, reserve, samples, before)

    def _next_name(self) -> str:
        taken = self._folder.manifest.known.keys() | self._folder.claims().keys()
        return f"{int(max(taken, default='0')) + 1:08}"

    def _drawn(self) -> NDArray[np.int64]:
        """Draw up to 100,000 rows that no worker has cached or is fetching.

        The order is random without replacement; a row's probability follows its weight. The row
        with the smallest exponential variate divided by its weight comes first.
        """
        free = self._available_rows()
        if not len(free):
            return free
        random = np.random.default_rng([self._seed, int(self._next_name())])
        times = random.exponential(size=len(free))
        if self._weights is not None:
            times /= self._weights[free]
        count = min(len(free), _MOST_SAMPLES)
        first = np.argpartition(times, count - 1)[:count]
        return free[first[np.argsort(times[first])]]

    def _available_rows(self) -> NDArray[np.int64]:
        free = self._not_cached().copy()
        for claim in self._folder.claims().values():
            free[claim.get("rows", [])] = False
        for row in [row for row in self._retry if not free[row]]:  # other workers fetched them
            del self._retry[row]
            self.tally.failed.pop(row, None)
        now = time.time()
        free[[row for row, (when, _) in self._retry.items() if when > now]] = False
        return np.flatnonzero(free)

    def _not_cached(self) -> NDArray[np.bool_]:
        """Return the rows of weight above 0 that are not in the newest generation, bool (N,)."""
        manifest = self._folder.manifest
        if self._seen != manifest.generation:
            free = (
                np.ones(len(self._listing), bool)
                if self._weights is None
                else np.asarray(self._weights) > 0
            )
            alive = manifest.alive()
            self._rows = {name: self._rows_of(shard) for name, shard in alive.items()}
            for rows in self._rows.values():
                free[rows] = False
            self._seen, self._mask = manifest.generation, free
        return self._mask

    def _rows_of(self, shard: CachedShard) -> NDArray[np.int64]:
        cached = self._rows.get(shard.name)
        rows: NDArray[np.int64] = (
            shard_files.open_table(self._folder.table(shard.name), shard.table_hash)[0]
            if cached is None
            else cached
        )
        return rows

    def _choose_samples(self, rows: NDArray[np.int64]) -> tuple[list[ShardSample], int]:
        """Return the samples of the next shard, and the bytes to reserve for it.

        If a sample's size is unknown, take up to 4,096 samples and reserve at least a whole shard.
        """
        samples: list[ShardSample] = []
        total, most = shard_files.END, int(self._options.shard_size)
        for row in rows.tolist():
            sample, size = self._listing.sample(row), int(self._listing.sizes[row])
            cost = sample.cost(max(size, 0))
            if (samples and total + cost > most) or (
                len(samples) == _OF_UNKNOWN_SIZE and size == UNKNOWN
            ):
                break
            samples.append(sample)
            total += cost
        is_exact = all(self._listing.sizes[s.row] != UNKNOWN for s in samples)
        return samples, total if is_exact else max(total, most)

    # --- fetching and publishing the shard

    def _carried_out(self, order: _Order) -> Outcome:
        tar, table = (
            self._folder.dir / "tmp" / f"{order.name}.{ending}" for ending in ("tar", "npy")
        )
        writer = shard_files.Writer(tar)
        try:
            full = self._write_samples(order, writer)
            if order.before is not None and len(writer) < len(order.samples):
                return self._give_up(order, self._why_incomplete(order))
            if not len(writer):
                return "no room" if full else "failed"
            writer.finish()
            shard = self._shard_record(order, writer, shard_files.save_table(writer.table, table))
            if order.before is not None and (shard.hash, shard.table_hash) != (
                order.before.hash,
                order.before.table_hash,
            ):
                return self._give_up(order, _CHANGED)
            self._publish(shard, order, tar, table)
            return "published"
        finally:
            writer.close()
            tar.unlink(missing_ok=True)
            table.unlink(missing_ok=True)
            with self._folder.lock():
                order.claim.release()

    def _why_incomplete(self, order: _Order) -> str:
        return next(
            (self.tally.failed[s.row] for s in order.samples if s.row in self.tally.failed),
            _CHANGED,
        )

    def _give_up(self, order: _Order, why: str) -> Outcome:
        """Evict a shard that cannot be fetched again, and record why."""
        self.tally.lost[order.name] = why
        with self._folder.lock():
            if order.name in self._folder.manifest.alive():
                self._folder.manifest.evict([order.name], "not to be fetched again")
        return "failed"

    def _shard_record(
        self, order: _Order, writer: shard_files.Writer, table_hash: str
    ) -> CachedShard:
        return CachedShard(
            order.name,
            len(writer),
            writer.bytes,
            writer.hash,
            shard_files.table_size(len(writer)),
            table_hash,
            time.time(),
        )

    def _publish(self, shard: CachedShard, order: _Order, tar: Any, table: Any) -> None:
        """Rename the files first, then append the line that publishes them.

        No reader looks for the files before the line exists.
        """
        with self._folder.lock():
            table.replace(self._folder.table(order.name))
            tar.replace(self._folder.shard(order.name))
            if order.before is None:
                try:
                    self._folder.manifest.publish(shard)
                except OSError:
                    self._folder.table(order.name).unlink()
                    self._folder.shard(order.name).unlink()
                    raise
            order.claim.release()

    def _write_samples(self, order: _Order, writer: shard_files.Writer) -> bool:
        """Write samples as they arrive; return whether one did not fit.

        Samples that do not fit remain for another shard.
        """
        for sample, image in self._iter_fetched(order):
            if image is None:
                continue
            need = on_disk(writer.size_with(sample.cost(len(image)))) + on_disk(
                shard_files.table_size(len(order.samples))
            )
            if need > order.reserved and (len(writer) or not self._extend_reservation(order, need)):
                return True
            writer.add(sample, image)
            self.tally.samples += 1
        return False

    def _extend_reservation(self, order: _Order, need: int) -> bool:
        """Reserve more bytes for a single sample that is larger than a shard."""
        with self._folder.lock():
            self._folder.tidy()
            if not evict.make_room(self._folder, need - order.reserved):
                return False
            order.claim.write({"reserved": need, "rows": [s.row for s in order.samples]})
            order.reserved = need
            return True

    def _iter_fetched(self, order: _Order) -> Iterator[tuple[ShardSample, bytes | None]]:
        """Yield the samples in order with their bytes, or None if a sample cannot be fetched.

        Up to 2 * connections samples are in flight.
        """
        samples = iter(order.samples)
        in_flight: deque[tuple[ShardSample, Future[bytes]]] = deque()
        try:
            while True:
                for sample in islice(samples, 2 * self._options.connections - len(in_flight)):
                    in_flight.append((sample, self._pool.submit(self._fetch_one, sample)))
                if not in_flight:
                    return
                sample, future = in_flight.popleft()
                yield sample, self._result(order, sample, future)
        finally:
            for _, future in in_flight:
                future.cancel()

    def _fetch_one(self, sample: ShardSample) -> bytes:
        size = int(self._listing.sizes[sample.row])
        self._rate.take(max(size, 0))
        data = self._store.fetch(sample.name, size, int(self._listing.tags[sample.row]))
        if size == UNKNOWN:
            self._rate.take(len(data))
        return data

    def _result(self, order: _Order, sample: ShardSample, future: Future[bytes]) -> bytes | None:
        try:
            data = future.result()
        except Unfetchable as e:
            _, pause = self._retry.get(sample.row, (0.0, _RETRY_FIRST / 2))
            self._retry[sample.row] = (time.time() + 2 * pause, min(2 * pause, _RETRY_LAST))
            self.tally.failed[sample.row] = f"{sample.name}: {e}"
            return None
        self.tally.bytes += len(data)
        self._retry.pop(sample.row, None)
        self.tally.failed.pop(sample.row, None)
        return data
