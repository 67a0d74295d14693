"""Chooses the samples of each epoch: those of the cache generation that the epoch pins.

In a run of several ranks, the first rank that begins an epoch chooses its generation. The other
ranks use the same one. Under `epoch: new`, an epoch has those shards of the generation that were
published after the epoch before it had begun.
"""

import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.evict import record_epoch
from gpupipe.cache.sample_locations import Locations
from gpupipe.cache.shared_files import Claim
from gpupipe.cache.training_run import TrainingRun
from gpupipe.cache.waiting import (
    explain_exhaustion,
    is_exhausted,
    refuse_full_cache,
    refuse_lost_shards,
    wait_until,
)
from gpupipe.cache.worker_pool import WorkerPool
from gpupipe.dataset.columns import Rows
from gpupipe.dataset.population import Population
from gpupipe.errors import DataError, StateError, counted

_BITS = 32


class ShardSelection(NamedTuple):
    """Which shards an epoch has.

    Attributes:
        generation: It has the shards of this generation of the cache; 0 if it has not begun.
        since: It lacks those that were published in the first `since` lines of the commit log.
    """

    generation: int
    since: int = 0

    @property
    def number(self) -> int:
        """Both as one number, which is the generation if `since` is 0."""
        return self.since << _BITS | self.generation

    @classmethod
    def from_number(cls, number: int) -> "ShardSelection":
        return cls(number) if number < 0 else cls(number & (1 << _BITS) - 1, number >> _BITS)


@dataclass(frozen=True)
class _PinnedEpoch:
    """The shards that an epoch trains on, and the pin that keeps them.

    `names` are the names of these shards, and `ids` the ids of their samples, ascending.
    """

    selection: ShardSelection
    pin: Claim
    names: frozenset[str]
    ids: Rows


class CachedPopulation(Population):
    """The samples of each epoch, from a growing cache.

    Args:
        folder: The cache.
        locations: Locates the samples of an epoch when it begins.
        workers: Download workers of this process; may be empty.
        run: The file through which ranks agree on generations; None for a single rank.
    """

    def __init__(
        self,
        folder: CacheFolder,
        locations: Locations,
        workers: WorkerPool,
        run: TrainingRun | None,
    ) -> None:
        self._folder, self._locations = folder, locations
        self._workers, self._run = workers, run
        self._pinned_epochs: dict[int, _PinnedEpoch] = {}
        self._generations: dict[int, int] = {}
        """The generation of each epoch that began."""

    def ids(self, epoch: int, problem: Callable[[int], str]) -> Rows:
        if epoch not in self._pinned_epochs:
            self._pinned_epochs[epoch] = self._pin_epoch(epoch, problem)
        return self._pinned_epochs[epoch].ids

    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        if epoch in self._pinned_epochs:
            return True
        self._workers.restart_killed()
        with self._folder.lock():
            log, agreed = self._folder.commit_log, self._read_agreed(epoch)
            shards = log.live_shards() if agreed is None else log.live_shards(*agreed)
            if not shards.keys() <= self._folder.list_present_shards():
                return False
            choice = self._choose(epoch, problem)
        if isinstance(choice, str):
            return False
        self._pinned_epochs[epoch] = self._wait_and_locate(epoch, *choice)
        return True

    def generation(self, epoch: int) -> int | None:
        if epoch in self._pinned_epochs:
            return self._pinned_epochs[epoch].selection.number
        since = self._find_since(epoch)
        return ShardSelection(0, since).number if since else None

    def resume(self, epoch: int, generation: int) -> None:
        selection = ShardSelection.from_number(generation)
        with self._folder.lock():
            self._check(selection)
            if not selection.generation:
                self._generations[epoch - 1] = selection.since
                return
            pin = self._pin(epoch, selection)
            self._record_choice(epoch, selection, 0)
        self._replace(epoch, self._wait_and_locate(epoch, selection, pin))

    def release(self, keep: Callable[[int], bool]) -> None:
        for epoch in [e for e in self._pinned_epochs if not keep(e)]:
            self._replace(epoch, None)

    def close(self) -> None:
        self.release(lambda epoch: False)
        self._workers.stop()
        if self._run is not None:
            self._run.leave()
        if len(self._workers):
            with self._folder.lock():
                self._folder.remove_leftovers()

    # --- choosing and pinning a generation

    def _pin_epoch(self, epoch: int, problem: Callable[[int], str]) -> _PinnedEpoch:
        def choose() -> tuple[ShardSelection, Claim] | str:
            with self._folder.lock():
                choice = self._choose(epoch, problem)
            if isinstance(choice, str):
                refuse_full_cache(self._folder)
            return choice

        self._workers.restart_killed()
        choice = wait_until(self._folder, [self._workers], f"epoch {epoch} waits", choose)
        return self._wait_and_locate(epoch, *choice)

    def _choose(
        self, epoch: int, problem: Callable[[int], str]
    ) -> tuple[ShardSelection, Claim] | str:
        """Pin the shards of an epoch. The caller must hold the cache's lock.

        Returns which these are, and their pin; or the reason why the epoch must wait.
        """
        agreed = self._read_agreed(epoch)
        selection = self._select(epoch, problem) if agreed is None else agreed
        if isinstance(selection, str):
            return selection
        try:
            pin = self._pin(epoch, selection)
            if agreed is None:
                self._record_choice(epoch, selection, sum(self._count(selection)))
        except OSError as e:
            return f"{self._folder.dir} cannot be written: {e.strerror or e}"
        return selection, pin

    def _select(self, epoch: int, problem: Callable[[int], str]) -> ShardSelection | str:
        """Return which shards an epoch can have now, or the reason why it must wait.

        Under `epoch: new`, it waits for new shards until all are in the cache. Then it has the new
        ones, or all if there are none, or too few. What the store refuses is not waited for, unless
        under `epoch: full`. The caller must hold the cache's lock.

        Raises:
            DataError: There will never be enough samples.
        """
        log = self._folder.commit_log
        missing = self._locations.count_missing(log.live_shards(), len(log.broken_rows()))
        nothing_comes = is_exhausted(self._folder)
        if self._folder.options.epoch != "full" and nothing_comes:
            missing = 0
        since, reason = self._find_since(epoch), ""
        for first in [since] if missing or not since else [since, 0]:
            selection = ShardSelection(log.generation, first)
            shards, samples = log.live_shards(*selection), sum(self._count(selection))
            # Broken samples alone are an epoch only if there is nothing else.
            has_samples = any(shard.samples for shard in shards.values())
            is_epoch = has_samples or not (first or missing)
            broken = len(log.broken_rows(*selection)) if is_epoch else 0
            reason = self._locations.explain_wait(shards, broken, missing) or problem(samples)
            if not reason:
                return selection
        if nothing_comes:
            why = explain_exhaustion(self._folder)
            raise DataError(f"epoch {epoch} cannot begin: {reason}, and {why}")
        return reason

    def _count(self, selection: ShardSelection) -> tuple[int, int]:
        """Return the numbers of samples in shards, and of broken ones."""
        log = self._folder.commit_log
        shards = log.live_shards(*selection).values()
        return sum(shard.samples for shard in shards), len(log.broken_rows(*selection))

    def _find_since(self, epoch: int) -> int:
        """Return the generation of the last epoch before this one; 0 unless under `epoch: new`."""
        earlier = [e for e in self._generations if e < epoch]
        is_new = self._folder.options.epoch == "new"
        return self._generations[max(earlier)] if is_new and earlier else 0

    def _read_agreed(self, epoch: int) -> ShardSelection | None:
        """Return what a rank of the run chose for an epoch; None before that.

        The caller must hold the cache's lock.
        """
        number = None if self._run is None else self._run.read_choice(epoch)
        return None if number is None else ShardSelection.from_number(number)

    def _record_choice(self, epoch: int, selection: ShardSelection, samples: int) -> None:
        """Record an epoch's shards for the other ranks and in the statistics of epochs.

        The caller must hold the cache's lock.
        """
        if self._run is not None:
            self._run.record_choice(epoch, selection.number)
        record_epoch(self._folder, *selection, samples)

    def _check(self, selection: ShardSelection) -> None:
        """Raise StateError unless the cache can still provide shards.

        The caller must hold the cache's lock.
        """
        generation, since = selection
        newest = self._folder.commit_log.generation
        if not 0 < (generation or since) <= newest or since > newest:
            raise StateError(
                f"the state is of generation {generation or since}, and the cache in "
                f"{self._folder.dir} has {newest}: it is another cache, or was deleted"
            )
        shards = self._folder.commit_log.live_shards(generation, since) if generation else {}
        evicted = sorted(name for name in shards if not self._folder.table_path(name).exists())
        if evicted:
            raise StateError(
                f"the state is of generation {generation} of the cache in {self._folder.dir}, and "
                f"{counted(len(evicted), 'shard')} of it were evicted too long ago to be made "
                f"again, the first {evicted[0]}"
            )

    def _pin(self, epoch: int, selection: ShardSelection) -> Claim:
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        return self._folder.create_claim(
            "pins", name, {**selection._asdict(), "epoch": epoch, "pid": os.getpid()}
        )

    def _wait_and_locate(self, epoch: int, selection: ShardSelection, pin: Claim) -> _PinnedEpoch:
        """Wait until all shards of an epoch are present, then locate its samples."""
        shards = self._folder.commit_log.live_shards(*selection)

        def check_complete() -> str | None:
            missing = shards.keys() - self._folder.list_present_shards()
            if not missing:
                return None
            refuse_lost_shards(self._folder, missing)
            refuse_full_cache(self._folder)
            return f"{counted(len(missing), 'shard')} of it must be fetched again"

        try:
            purpose = f"generation {selection.generation} is not whole"
            wait_until(self._folder, [self._workers], purpose, check_complete)
            broken = self._folder.commit_log.broken_rows(*selection)
            ids = self._locations.locate(shards, broken)
            self._generations[epoch] = selection.generation
            return _PinnedEpoch(selection, pin, frozenset(shards), ids)
        except BaseException:
            pin.release()
            raise

    def _replace(self, epoch: int, pinned: _PinnedEpoch | None) -> None:
        """Replace the pinned generation of an epoch, or remove it if `pinned` is None.

        Files of the generation before are unmapped before its pin is released, because unpinned
        files may be evicted.
        """
        before = self._pinned_epochs.pop(epoch, None)
        if pinned is not None:
            self._pinned_epochs[epoch] = pinned
        if before is None:
            return
        needed = {name for p in self._pinned_epochs.values() for name in p.names}
        self._locations.forget(before.names - needed)
        before.pin.release()
