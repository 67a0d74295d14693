"""A sampler's work: draws samples that are not in the cache, fetches them, and publishes a shard of
them.
"""

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
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.disk import on_disk
from gpupipe.cache.folder import CacheFolder
from gpupipe.cache.listing import UNKNOWN, Listing
from gpupipe.cache.locks import Claim
from gpupipe.cache.rate import Rate
from gpupipe.cache.shard_files import ShardSample
from gpupipe.cache.store import Store, Unfetchable

Outcome = Literal["published", "complete", "no room", "disk full", "failed"]
_MOST_SAMPLES = 100_000
_OF_UNKNOWN_SIZE = 4096
_OTHERS = "its samples are others in the store than when it was made"
_RETRY_FIRST, _RETRY_LAST = 30.0, 3600.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Tally:
    """What a sampler has done so far, and what went wrong.

    failed: why, by row; lost: why a shard cannot be fetched again, by its name.
    """

    bytes: int = 0
    samples: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


@dataclass
class _Order:
    """A shard to be made: its claim, its samples, and, where it is fetched again, as what it was
    published.
    """

    name: str
    claim: Claim
    reserved: int
    samples: list[ShardSample]
    before: CachedShard | None = None


class Filler:
    """Fills a folder with samples of a listing from a store, a shard at a time."""

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
        """Publish a shard, or say why there is none to publish.

        fresh: also of samples that are not missing from what was published.
        """
        try:
            order = self._order(fresh)
            return order if isinstance(order, str) else self._carried_out(order)
        except OSError as e:
            if e.errno not in _DISK_FULL:
                raise
            return "disk full"

    # --- what is to be made

    def _order(self, fresh: bool) -> _Order | Outcome:
        """Claim the next shard."""
        folder = self._folder
        with folder.lock():
            folder.tidy()
            for name in folder.missing():
                if name not in self.tally.lost:
                    return self._again(name)
            rows = self._drawn() if fresh else np.empty(0, np.int64)
            if not len(rows):
                return "failed" if self._retry else "complete"
            samples, cost = self._fitting(rows)
            reserve = on_disk(cost) + on_disk(shard_files.table_size(len(samples)))
            if not evict.make_room(folder, reserve + on_disk(len(samples) * 12)):
                return "no room"
            return self._claimed(self._next_name(), samples, reserve)

    def _again(self, name: str) -> _Order | Outcome:
        """A shard that was there before, in place of a file that is gone."""
        before = self._folder.manifest.known[name]
        table = shard_files.open_table(self._folder.table(name), before.table_hash)
        samples = [self._listing.sample(int(row)) for row in table[0]]
        reserve = on_disk(before.bytes) + on_disk(before.table_bytes)
        if not evict.make_room_for_pinned(self._folder, reserve):
            return "no room"
        return self._claimed(name, samples, reserve, before)

    def _claimed(
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
        """Rows that nobody has or fetches, in the order in which they are drawn: without
        replacement, each as likely as its weight says.
        """
        free = self._free()
        if not len(free):
            return free
        random = np.random.default_rng([self._seed, int(self._next_name())])
        times = random.exponential(size=len(free))
        if self._weights is not None:
            times /= self._weights[free]
        count = min(len(free), _MOST_SAMPLES)
        first = np.argpartition(times, count - 1)[:count]
        return free[first[np.argsort(times[first])]]

    def _free(self) -> NDArray[np.int64]:
        free = self._not_cached().copy()
        for claim in self._folder.claims().values():
            free[claim.get("rows", [])] = False
        for row in [row for row in self._retry if not free[row]]:  # others fetched them meanwhile
            del self._retry[row]
            self.tally.failed.pop(row, None)
        now = time.time()
        free[[row for row, (when, _) in self._retry.items() if when > now]] = False
        return np.flatnonzero(free)

    def _not_cached(self) -> NDArray[np.bool_]:
        """Which rows may be drawn, as far as the newest generation says, bool (N,)."""
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
        known = self._rows.get(shard.name)
        found: NDArray[np.int64] = (
            shard_files.open_table(self._folder.table(shard.name), shard.table_hash)[0]
            if known is None
            else known
        )
        return found

    def _fitting(self, rows: NDArray[np.int64]) -> tuple[list[ShardSample], int]:
        """The first of the rows that make a shard, and its bytes; of samples whose size is not
        known, those that may be in it.
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
        known = all(self._listing.sizes[s.row] != UNKNOWN for s in samples)
        return samples, total if known else max(total, most)

    # --- making it

    def _carried_out(self, order: _Order) -> Outcome:
        tar, table = (
            self._folder.dir / "tmp" / f"{order.name}.{ending}" for ending in ("tar", "npy")
        )
        writer = shard_files.Writer(tar)
        try:
            full = self._written(order, writer)
            if order.before is not None and len(writer) < len(order.samples):
                return self._lost(order, self._why_not(order))
            if not len(writer):
                return "no room" if full else "failed"
            writer.finish()
            made = self._as_published(order, writer, shard_files.save_table(writer.table, table))
            if order.before is not None and (made.hash, made.table_hash) != (
                order.before.hash,
                order.before.table_hash,
            ):
                return self._lost(order, _OTHERS)
            self._publish(made, order, tar, table)
            return "published"
        finally:
            writer.close()
            tar.unlink(missing_ok=True)
            table.unlink(missing_ok=True)
            with self._folder.lock():
                order.claim.release()

    def _why_not(self, order: _Order) -> str:
        return next(
            (self.tally.failed[s.row] for s in order.samples if s.row in self.tally.failed), _OTHERS
        )

    def _lost(self, order: _Order, why: str) -> Outcome:
        """A shard that cannot be made again: the generations that follow are without it."""
        self.tally.lost[order.name] = why
        with self._folder.lock():
            if order.name in self._folder.manifest.alive():
                self._folder.manifest.evict([order.name], "not to be fetched again")
        return "failed"

    def _as_published(
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

    def _publish(self, made: CachedShard, order: _Order, tar: Any, table: Any) -> None:
        """The files first, under names that nobody looks for yet; then the line that says that they
        are there.
        """
        with self._folder.lock():
            table.replace(self._folder.table(order.name))
            tar.replace(self._folder.shard(order.name))
            if order.before is None:
                try:
                    self._folder.manifest.publish(made)
                except OSError:
                    self._folder.table(order.name).unlink()
                    self._folder.shard(order.name).unlink()
                    raise
            order.claim.release()

    def _written(self, order: _Order, writer: shard_files.Writer) -> bool:
        """Write the samples as they come; those that do not fit any more stay for another shard.

        Returns whether one did not fit.
        """
        for sample, image in self._fetched(order):
            if image is None:
                continue
            need = on_disk(writer.size_with(sample.cost(len(image)))) + on_disk(
                shard_files.table_size(len(order.samples))
            )
            if need > order.reserved and (len(writer) or not self._extended(order, need)):
                return True
            writer.add(sample, image)
            self.tally.samples += 1
        return False

    def _extended(self, order: _Order, need: int) -> bool:
        """Reserve more for a sample that is larger than a shard."""
        with self._folder.lock():
            self._folder.tidy()
            if not evict.make_room(self._folder, need - order.reserved):
                return False
            order.claim.write({"reserved": need, "rows": [s.row for s in order.samples]})
            order.reserved = need
            return True

    def _fetched(self, order: _Order) -> Iterator[tuple[ShardSample, bytes | None]]:
        """The samples in order and their bytes, None for those that cannot be fetched, with some of
        those that follow under way.
        """
        samples = iter(order.samples)
        flight: deque[tuple[ShardSample, Future[bytes]]] = deque()
        try:
            while True:
                for sample in islice(samples, 2 * self._options.connections - len(flight)):
                    flight.append((sample, self._pool.submit(self._one, sample)))
                if not flight:
                    return
                sample, future = flight.popleft()
                yield sample, self._result(order, sample, future)
        finally:
            for _, future in flight:
                future.cancel()

    def _one(self, sample: ShardSample) -> bytes:
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
