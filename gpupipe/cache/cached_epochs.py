"""Chooses the samples of each epoch: those of the cache generation that the epoch pins."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpupipe.cache import epochs, shard_files
from gpupipe.cache.claims import Claim
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.folder import CacheFolder
from gpupipe.cache.rank_agreement import TrainingRun
from gpupipe.cache.worker_pool import Crew, cleaned
from gpupipe.dataset.index import Rows, SpanColumn, StringArray
from gpupipe.dataset.source import Population, UnmapFiles
from gpupipe.errors import DataError, StateError, counted

T = TypeVar("T")
_POLL_SECONDS = 0.1
_SAY_AFTER = 1.0
_NO_WORKERS = (
    "no sampler is at work: run 'gpupipe cache fill CONFIG --serve', or set data.cache.samplers"
)


class ShardNames(StringArray):
    """File names of shards, computed and not stored: shard n is the file 0000000n.tar.

    Shards may thus be added at any time.
    """

    def __getitem__(self, i: int) -> str:
        return f"{i:08}.tar"


def spans(folder: CacheFolder, rows: int) -> SpanColumn:
    """Return an empty column for the places of `rows` samples, which a `Cached` fills in.

    Args:
        folder: The cache.
        rows: Number of rows of the data set.
    """
    return SpanColumn(
        str(folder.dir / "shards"),
        ShardNames.from_strings([]),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
    )


def here(folder: CacheFolder, spans: SpanColumn) -> Rows:
    """Return the rows in the newest generation, and write their places into `spans`. Pins nothing.

    Args:
        folder: The cache.
        spans: The column to write to, from `spans()`.

    Returns:
        Row numbers, ascending, int64 (n,).

    Raises:
        DataError: The table of a shard is damaged.
    """
    with folder.lock():
        present = folder.there()
        rows_of_shards = [
            _locate_shard(folder, spans, shard)
            for name, shard in folder.manifest.alive().items()
            if name in present
        ]
    rows: Rows = np.unique(np.concatenate([np.empty(0, np.int64), *rows_of_shards]))
    return rows


def _locate_shard(folder: CacheFolder, spans: SpanColumn, shard: CachedShard) -> Rows:
    """Write the places of a shard's samples into `spans`, and return their rows.

    Raises DataError if the shard's table is damaged.
    """
    table = folder.table(shard.name)
    rows: Rows
    rows, offset, length = shard_files.open_table(table, shard.table_hash)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(spans.file):
        raise DataError(
            f"{table}: holds rows that the data set has not: run 'gpupipe cache verify CONFIG'"
        )
    spans.file[rows], spans.offset[rows], spans.length[rows] = int(shard.name), offset, length
    return rows


@dataclass(frozen=True)
class _PinnedEpoch:
    """The generation of an epoch, the names of its shards, and its sample ids, ascending."""

    generation: int
    pin: Claim
    names: frozenset[str]
    ids: Rows


class Cached(Population):
    """The samples of each epoch, from a growing cache.

    Args:
        folder: The cache.
        spans: Column in which the place of each sample is written when an epoch begins.
        whole: Number of rows that an epoch waits for under `epoch: full`.
        crew: Download workers of this process; may be empty.
        run: This rank's part in the agreement between ranks; None for a single rank.
        unmap_files: Unmaps the files of shards, which are about to be removed or replaced.
    """

    def __init__(
        self,
        folder: CacheFolder,
        spans: SpanColumn,
        whole: int,
        crew: Crew,
        run: TrainingRun | None,
        unmap_files: UnmapFiles,
    ) -> None:
        self._unmap_files = unmap_files
        self._folder, self._spans, self._whole, self._crew, self._run = (
            folder,
            spans,
            whole,
            crew,
            run,
        )
        self._pinned_epochs: dict[int, _PinnedEpoch] = {}
        self._rows: dict[str, Rows] = {}
        self._inodes: dict[str, int] = {}
        self._overlap = False

    def ids(self, epoch: int, problem: Callable[[int], str]) -> Rows:
        if epoch not in self._pinned_epochs:
            self._pinned_epochs[epoch] = self._pin_epoch(epoch, problem)
        return self._pinned_epochs[epoch].ids

    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        if epoch in self._pinned_epochs:
            return True
        self._crew.check()
        with self._folder.lock():
            generation = self._generation(epoch)
            if not self._folder.manifest.alive(generation).keys() <= self._folder.there():
                return False
            choice = self._choose(epoch, problem)
        if isinstance(choice, str):
            return False
        self._pinned_epochs[epoch] = self._wait_and_locate(*choice)
        return True

    def generation(self, epoch: int) -> int | None:
        return self._pinned_epochs[epoch].generation if epoch in self._pinned_epochs else None

    def resume(self, epoch: int, generation: int) -> None:
        with self._folder.lock():
            if not 0 < generation <= self._folder.manifest.generation:
                newest = self._folder.manifest.generation
                raise StateError(
                    f"the state is of generation {generation}, and the cache in "
                    f"{self._folder.dir} has {newest}: it is another cache, or was deleted"
                )
            evicted = sorted(
                n
                for n in self._folder.manifest.alive(generation)
                if not self._folder.table(n).exists()
            )
            if evicted:
                details = (
                    f"{counted(len(evicted), 'shard')} of it were evicted too long ago to be made "
                    f"again, the first {evicted[0]}"
                )
                raise StateError(
                    f"the state is of generation {generation} of the cache in "
                    f"{self._folder.dir}, and {details}"
                )
            pin = self._pin(epoch, generation)
            self._record_choice(epoch, generation, 0)
        self._replace(epoch, self._wait_and_locate(generation, pin))

    def release(self, keep: Callable[[int], bool]) -> None:
        for epoch in [e for e in self._pinned_epochs if not keep(e)]:
            self._replace(epoch, None)

    def close(self) -> None:
        self.release(lambda epoch: False)
        self._crew.stop()
        if self._run is not None:
            self._run.leave()
        if len(self._crew):
            cleaned(self._folder)

    # --- choosing and pinning a generation

    def _pin_epoch(self, epoch: int, problem: Callable[[int], str]) -> _PinnedEpoch:
        def choose() -> tuple[int, Claim] | str:
            with self._folder.lock():
                return self._choose(epoch, problem)

        self._crew.check()
        return self._wait_and_locate(*self._wait(f"epoch {epoch} waits", choose))

    def _choose(self, epoch: int, problem: Callable[[int], str]) -> tuple[int, Claim] | str:
        """Return the pinned generation of an epoch, or why there is none yet. Needs the lock."""
        agreed = self._agreed_generation(epoch)
        generation = self._generation(epoch)
        samples = sum(s.samples for s in self._folder.manifest.alive(generation).values())
        reason = "" if agreed is not None else self._why_incomplete(samples) or problem(samples)
        if reason:
            return reason
        try:
            pin = self._pin(epoch, generation)
            if agreed is None:
                self._record_choice(epoch, generation, samples)
        except OSError as e:
            return f"{self._folder.dir} cannot be written: {e.strerror or e}"
        return generation, pin

    def _agreed_generation(self, epoch: int) -> int | None:
        """Return the generation that another rank chose for an epoch, or None. Needs the lock."""
        return self._run.chosen(epoch) if self._run is not None else None

    def _generation(self, epoch: int) -> int:
        """Return the generation of an epoch that begins now. Needs the lock."""
        agreed = self._agreed_generation(epoch)
        return self._folder.manifest.generation if agreed is None else agreed

    def _record_choice(self, epoch: int, generation: int, samples: int) -> None:
        """Record the choice for the other ranks and for the statistics. Needs the lock."""
        if self._run is not None:
            self._run.choose(epoch, generation)
        epochs.add(self._folder, generation, samples)

    def _why_incomplete(self, samples: int) -> str:
        if self._folder.options.epoch == "full" and samples < self._whole:
            return (
                f"{samples:,} of {self._whole:,} samples are in the cache, and data.cache.epoch "
                "is full"
            )
        return "" if samples else f"nothing is in the cache in {self._folder.dir} yet"

    def _pin(self, epoch: int, generation: int) -> Claim:
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        return self._folder.claim(
            "pins", name, {"generation": generation, "epoch": epoch, "pid": os.getpid()}
        )

    def _wait_and_locate(self, generation: int, pin: Claim) -> _PinnedEpoch:
        """Wait until all shards of a pinned generation are present, then locate its samples."""
        alive = self._folder.manifest.alive(generation)

        def complete() -> str | None:
            missing = alive.keys() - self._folder.there()
            self._refuse_lost(missing)
            return (
                f"{counted(len(missing), 'shard')} of it must be fetched again" if missing else None
            )

        try:
            self._wait(f"generation {generation} is not whole", complete)
            return _PinnedEpoch(generation, pin, frozenset(alive), self._locate_samples(alive))
        except BaseException:
            pin.release()
            raise

    def _locate_samples(self, alive: dict[str, CachedShard]) -> Rows:
        """Write the places of all samples into `spans`, and return their ids in ascending order.

        Reads only tables of new or replaced shards. If shards overlap, it reads all of them in
        order, so that the newest shard of a sample counts.
        """
        mask = np.zeros(len(self._spans.file), bool)
        inodes = {name: os.stat(self._folder.shard(name)).st_ino for name in alive}
        self._unmap_files(
            {int(name) for name, inode in inodes.items() if self._inodes.get(name, inode) != inode}
        )
        for name, shard in alive.items():
            if self._overlap or self._inodes.get(name) != inodes[name]:
                self._rows[name] = _locate_shard(self._folder, self._spans, shard)
            mask[self._rows[name]] = True
        ids = np.flatnonzero(mask)
        overlap = len(ids) < sum(s.samples for s in alive.values())
        self._inodes |= inodes
        if overlap and not self._overlap:
            self._overlap = True
            return self._locate_samples(alive)
        return ids

    def _replace(self, epoch: int, taken: _PinnedEpoch | None) -> None:
        """Replace an epoch's generation, or remove it (None).

        Files are unmapped before the pin is released: afterwards they count as evictable.
        """
        before = self._pinned_epochs.pop(epoch, None)
        if taken is not None:
            self._pinned_epochs[epoch] = taken
        if before is None:
            return
        needed = {name for t in self._pinned_epochs.values() for name in t.names}
        unneeded = before.names - needed
        self._unmap_files({int(name) for name in unneeded})
        for name in unneeded:
            self._rows.pop(name, None)
            self._inodes.pop(name, None)
        before.pin.release()

    # --- waiting

    def _wait(self, what: str, attempt: Callable[[], T | str]) -> T:
        """Call `attempt` until it returns something other than a reason (str) to wait.

        `what` begins the messages. Raises DataError if waiting cannot help, or if nothing happens
        for data.cache.wait seconds.
        """
        began = last = time.monotonic()
        seen, reported = None, False
        while isinstance(result := attempt(), str):
            now, samplers = time.monotonic(), self._folder.claims("samplers")
            self._crew.check()
            self._refuse_hopeless(samplers)
            state = (
                self._folder.manifest.generation,
                sum(s.get("bytes", 0) for s in samplers.values()),
            )
            last, seen = (now, state) if state != seen else (last, seen)
            if now - last > self._folder.options.wait:
                raise DataError(
                    f"{what}: {result}, and nothing came for {now - last:.0f} s "
                    f"(data.cache.wait): {self._reasons(samplers)}"
                )
            if not reported and now - began > _SAY_AFTER:
                reported = True
                print(
                    f"gpupipe cache: {what}: {result} ({self._reasons(samplers)})",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(_POLL_SECONDS)
        return result

    def _reasons(self, samplers: dict[str, dict[str, Any]]) -> str:
        """Return the states and failures that the download workers report."""
        if not samplers:
            return "samplers are starting" if len(self._crew) else _NO_WORKERS
        states = [str(s.get("state", "starting")) for s in samplers.values()]
        return "; ".join(
            dict.fromkeys(
                [*states, *(why for s in samplers.values() for why in s.get("failures", []))]
            )
        )

    def _refuse_hopeless(self, samplers: dict[str, dict[str, Any]]) -> None:
        """Raise DataError if `epoch: full` waits on a full cache.

        Under `epoch: full` nothing is evicted, so a full cache stays as it is.
        """
        if self._folder.options.epoch == "full" and any(
            str(s.get("state", "")).startswith("waiting: the cache is full")
            for s in samplers.values()
        ):
            raise DataError(
                does_not_fit(self._folder, "the cache is full before the whole data set is in it")
            )

    def _refuse_lost(self, missing: set[str]) -> None:
        """Raise StateError if a missing shard cannot be fetched again."""
        for worker in self._folder.claims("samplers").values():
            for name, why in worker.get("lost", {}).items():
                if name in missing:
                    raise StateError(
                        f"{self._folder.shard(name)}: was evicted and cannot be fetched "
                        f"again: {why}"
                    )


def does_not_fit(folder: CacheFolder, why: str) -> str:
    """Return the message for a data set that does not fit into the cache under `epoch: full`.

    Args:
        folder: The cache.
        why: The first part of the message.
    """
    return (
        f"{why}: data.cache.max_bytes is {folder.options.max_bytes:,}; make it larger, or set "
        f"data.cache.epoch: grow ({folder.dir})"
    )
