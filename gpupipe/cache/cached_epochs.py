"""The samples of each epoch of a loader: those of the generation that it pins."""

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
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.folder import CacheFolder
from gpupipe.cache.locks import Claim
from gpupipe.cache.rank_agreement import TrainingRun
from gpupipe.cache.worker_pool import Crew, cleaned
from gpupipe.dataset.index import Rows, SpanColumn, StringArray
from gpupipe.dataset.source import Population
from gpupipe.errors import DataError, StateError, counted

T = TypeVar("T")
_POLL_SECONDS = 0.1
_SAY_AFTER = 1.0
_NOBODY = (
    "no sampler is at work: run 'gpupipe cache fill CONFIG --serve', or set data.cache.samplers"
)


class ShardNames(StringArray):
    """Shard n is the file 0000000n.tar: names that are not stored, so that there may be more of
    them at any time.
    """

    def __getitem__(self, i: int) -> str:
        return f"{i:08}.tar"


def spans(folder: CacheFolder, rows: int) -> SpanColumn:
    """Where the bytes of `rows` samples are: to be filled in by a Cached."""
    nothing = np.empty(0, np.uint8), np.empty(0, np.int64)
    return SpanColumn(
        str(folder.dir / "shards"),
        ShardNames(*nothing),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
    )


def here(folder: CacheFolder, spans: SpanColumn) -> Rows:
    """The rows that the newest generation has, noted in `spans`; nothing is pinned."""
    with folder.lock():
        there = folder.there()
        found = [
            _note(folder, spans, shard)
            for name, shard in folder.manifest.alive().items()
            if name in there
        ]
    rows: Rows = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    return rows


def _note(folder: CacheFolder, spans: SpanColumn, shard: CachedShard) -> Rows:
    """Note where the samples of a shard are.

    Returns their rows. Raises DataError where its table is damaged.
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
class _Taken:
    """An epoch's generation, and its ids in ascending order."""

    generation: int
    pin: Claim
    names: frozenset[str]
    ids: Rows


class Cached(Population):
    """What a growing cache has.

    whole: how many rows `epoch: full` waits for. spans: where it says of each row of an epoch where
    it is.
    """

    def __init__(
        self,
        folder: CacheFolder,
        spans: SpanColumn,
        whole: int,
        crew: Crew,
        run: TrainingRun | None,
    ) -> None:
        super().__init__()
        self._folder, self._spans, self._whole, self._crew, self._run = (
            folder,
            spans,
            whole,
            crew,
            run,
        )
        self._taken: dict[int, _Taken] = {}
        self._rows: dict[str, Rows] = {}
        self._inodes: dict[str, int] = {}
        self._overlap = False

    def ids(self, epoch: int, problem: Callable[[int], str]) -> Rows:
        if epoch not in self._taken:
            self._taken[epoch] = self._take(epoch, problem)
        return self._taken[epoch].ids

    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        if epoch in self._taken:
            return True
        self._crew.check()
        with self._folder.lock():
            generation = self._generation(epoch)
            if not self._folder.manifest.alive(generation).keys() <= self._folder.there():
                return False
            choice = self._choose(epoch, problem)
        if isinstance(choice, str):
            return False
        self._taken[epoch] = self._loaded(*choice)
        return True

    def generation(self, epoch: int) -> int | None:
        return self._taken[epoch].generation if epoch in self._taken else None

    def resume(self, epoch: int, generation: int) -> None:
        with self._folder.lock():
            if not 0 < generation <= self._folder.manifest.generation:
                newest = self._folder.manifest.generation
                raise StateError(
                    f"the state is of generation {generation}, and the cache in "
                    f"{self._folder.dir} has {newest}: it is another cache, or was deleted"
                )
            lost = sorted(
                n
                for n in self._folder.manifest.alive(generation)
                if not self._folder.table(n).exists()
            )
            if lost:
                gone = (
                    f"{counted(len(lost), 'shard')} of it were evicted too long ago to be made "
                    f"again, the first {lost[0]}"
                )
                raise StateError(
                    f"the state is of generation {generation} of the cache in "
                    f"{self._folder.dir}, and {gone}"
                )
            pin = self._pin(epoch, generation)
            self._told(epoch, generation, 0)
        self._replace(epoch, self._loaded(generation, pin))

    def release(self, keep: Callable[[int], bool]) -> None:
        for epoch in [e for e in self._taken if not keep(e)]:
            self._replace(epoch, None)

    def close(self) -> None:
        self.release(lambda epoch: False)
        self._crew.stop()
        if self._run is not None:
            self._run.leave()
        if len(self._crew):
            cleaned(self._folder)

    # --- taking

    def _take(self, epoch: int, problem: Callable[[int], str]) -> _Taken:
        def chosen() -> tuple[int, Claim] | str:
            with self._folder.lock():
                return self._choose(epoch, problem)

        self._crew.check()
        return self._loaded(*self._wait(f"epoch {epoch} waits", chosen))

    def _choose(self, epoch: int, problem: Callable[[int], str]) -> tuple[int, Claim] | str:
        """The generation of an epoch, pinned, or why there is none yet. Needs the lock."""
        chosen = self._chosen(epoch)
        generation = self._generation(epoch)
        samples = sum(s.samples for s in self._folder.manifest.alive(generation).values())
        why = "" if chosen is not None else self._lacks(samples) or problem(samples)
        if why:
            return why
        try:
            pin = self._pin(epoch, generation)
            if chosen is None:
                self._told(epoch, generation, samples)
        except OSError as e:
            return f"{self._folder.dir} cannot be written: {e.strerror or e}"
        return generation, pin

    def _chosen(self, epoch: int) -> int | None:
        """The generation that another rank chose for an epoch. Needs the lock."""
        return self._run.chosen(epoch) if self._run is not None else None

    def _generation(self, epoch: int) -> int:
        """The generation that an epoch has if it begins now. Needs the lock."""
        chosen = self._chosen(epoch)
        return self._folder.manifest.generation if chosen is None else chosen

    def _told(self, epoch: int, generation: int, samples: int) -> None:
        """Tell the other ranks, and the statistics, what was chosen. Needs the lock."""
        if self._run is not None:
            self._run.choose(epoch, generation)
        epochs.add(self._folder, generation, samples)

    def _lacks(self, samples: int) -> str:
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

    def _loaded(self, generation: int, pin: Claim) -> _Taken:
        """Wait until all shards of a pinned generation are there, and note where its samples
        are.
        """
        alive = self._folder.manifest.alive(generation)

        def complete() -> str | None:
            missing = alive.keys() - self._folder.there()
            self._refuse_lost(missing)
            return (
                f"{counted(len(missing), 'shard')} of it must be fetched again" if missing else None
            )

        try:
            self._wait(f"generation {generation} is not whole", complete)
            return _Taken(generation, pin, frozenset(alive), self._noted(alive))
        except BaseException:
            pin.release()
            raise

    def _noted(self, alive: dict[str, CachedShard]) -> Rows:
        mask = np.zeros(len(self._spans.file), bool)
        inodes = {name: os.stat(self._folder.shard(name)).st_ino for name in alive}
        self.let_go(
            {int(name) for name, inode in inodes.items() if self._inodes.get(name, inode) != inode}
        )
        for name, shard in alive.items():
            if self._overlap or self._inodes.get(name) != inodes[name]:
                self._rows[name] = _note(self._folder, self._spans, shard)
            mask[self._rows[name]] = True
        ids = np.flatnonzero(mask)
        overlap = len(ids) < sum(s.samples for s in alive.values())
        self._inodes |= inodes
        if overlap and not self._overlap:
            self._overlap = True
            return self._noted(alive)
        return ids

    def _replace(self, epoch: int, taken: _Taken | None) -> None:
        """Let go of an epoch's generation, or of what stood there before another; files first, so
        that they are gone when they count as gone.
        """
        before = self._taken.pop(epoch, None)
        if taken is not None:
            self._taken[epoch] = taken
        if before is None:
            return
        needed = {name for t in self._taken.values() for name in t.names}
        gone = before.names - needed
        self.let_go({int(name) for name in gone})
        for name in gone:
            self._rows.pop(name, None)
            self._inodes.pop(name, None)
        before.pin.release()

    # --- waiting

    def _wait(self, what: str, attempt: Callable[[], T | str]) -> T:
        """What `attempt` gives when it gives something else than why not. Raises DataError where
        there is no hope, or nothing happens for data.cache.wait seconds. what: waits."""
        began = last = time.monotonic()
        seen, said = None, False
        while isinstance(found := attempt(), str):
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
                    f"{what}: {found}, and nothing came for {now - last:.0f} s "
                    f"(data.cache.wait): {self._reasons(samplers)}"
                )
            if not said and now - began > _SAY_AFTER:
                said = True
                print(
                    f"gpupipe cache: {what}: {found} ({self._reasons(samplers)})",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(_POLL_SECONDS)
        return found

    def _reasons(self, samplers: dict[str, dict[str, Any]]) -> str:
        """What the samplers say of themselves."""
        if not samplers:
            return "samplers are starting" if len(self._crew) else _NOBODY
        said = [str(s.get("state", "starting")) for s in samplers.values()]
        return "; ".join(
            dict.fromkeys(
                [*said, *(why for s in samplers.values() for why in s.get("failures", []))]
            )
        )

    def _refuse_hopeless(self, samplers: dict[str, dict[str, Any]]) -> None:
        """`epoch: full` never evicts, so a cache that is full stays as it is."""
        if self._folder.options.epoch == "full" and any(
            str(s.get("state", "")).startswith("waiting: the cache is full")
            for s in samplers.values()
        ):
            raise DataError(
                does_not_fit(self._folder, "the cache is full before the whole data set is in it")
            )

    def _refuse_lost(self, missing: set[str]) -> None:
        for said in self._folder.claims("samplers").values():
            for name, why in said.get("lost", {}).items():
                if name in missing:
                    raise StateError(
                        f"{self._folder.shard(name)}: was evicted and cannot be fetched "
                        f"again: {why}"
                    )


def does_not_fit(folder: CacheFolder, why: str) -> str:
    """The message for `epoch: full` where it cannot be."""
    return (
        f"{why}: data.cache.max_bytes is {folder.options.max_bytes:,}; make it larger, or set "
        f"data.cache.epoch: grow ({folder.dir})"
    )
