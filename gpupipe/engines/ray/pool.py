"""The workers of one trainer: starts them, replaces those that die, and ends them."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import ray

from gpupipe.config import RayConfig
from gpupipe.engines.ray.actor import WorkerFacts, explain_difference, list_versions
from gpupipe.engines.ray.capacity import explain_no_room
from gpupipe.engines.ray.cluster import Cluster
from gpupipe.engines.ray.messages import BatchAnswer
from gpupipe.engines.ray.pool_worker import PoolWorker, SharedJob, create_actor, end_actors
from gpupipe.errors import EngineError, counted
from gpupipe.sampling.sampler import Plan

_log = logging.getLogger("gpupipe")
_PATIENCE_BEFORE_LOG = 3.0
_TICK = 0.25
_MAX_FAILED_STARTS = 5
"""How many workers in a row may end before they are ready."""


class RayWorkerPool:
    """Starts and ends the workers of one trainer.

    Args:
        cluster: The cluster.
        options: The settings.
        job: What every worker builds.
        count: How many workers there should be.

    Attributes:
        job: What every worker builds.
        changed: Notified when a worker becomes ready. Its lock guards the pool.
        ready: The workers that are ready.
        target: How many workers there should be. `resize` changes it.
    """

    def __init__(self, cluster: Cluster, options: RayConfig, job: SharedJob, count: int) -> None:
        self._cluster, self._options, self.job = cluster, options, job
        self.changed = threading.Condition()
        self.ready: list[PoolWorker] = []
        self._failure: Exception | None = None
        """Why a worker cannot work at all, or None."""
        self.target = count
        self._starting: dict[threading.Thread, Any] = {}
        """The actor of each thread that waits for one to become ready."""
        self._placed: set[threading.Thread] = set()
        """Those of these threads whose actor has a place and builds its engine."""
        self._ending: list[threading.Thread] = []
        self._failed_starts = 0
        self._is_closed = False
        self._reference: WorkerFacts | None = None
        """The facts of the first worker, whose versions all others must have."""
        self._empty_since = time.monotonic()

    @property
    def is_settled(self) -> bool:
        """Whether as many workers are ready as there should be."""
        with self.changed:
            return len(self.ready) == self.target

    def start(self) -> None:
        """Start the workers, and wait until all are ready.

        Raises:
            EngineError: The cluster cannot place them within `ray.wait` seconds, or a worker cannot
                do the job.
        """
        started = time.monotonic()
        log_after = _PATIENCE_BEFORE_LOG
        with self.changed:
            self._start_missing()
            while len(self.ready) < self.target and self._failure is None:
                waited = time.monotonic() - started
                if self._count_unplaced() and waited >= self._options.wait:
                    raise EngineError(self._explain_no_room(gave_up=True))
                if self._count_unplaced() and waited >= log_after:
                    _log.warning("gpupipe: %s", self._explain_no_room(gave_up=False))
                    log_after = float("inf")
                self.changed.wait(_TICK)
        self.check()

    def measure_sample(self) -> int:
        """Return the bytes of the first sample as a worker sends it; 0 if the worker fails."""
        ref, _ = self.ready[0].send(-1, 0, Plan(0, np.zeros(1, np.int64), 1, False))
        try:
            answer: BatchAnswer | None = ray.get(ref)
        except ray.exceptions.RayError:
            return 0
        return 0 if answer is None else answer.nbytes

    def check(self) -> None:
        """Raise why no worker can work, if that is so."""
        with self.changed:
            if self._failure is not None:
                raise self._failure
            if self.ready or self._placed:
                self._empty_since = time.monotonic()
            elif time.monotonic() - self._empty_since > self._options.wait:
                raise EngineError(self._explain_no_room(gave_up=True))

    def resize(self, count: int) -> None:
        """Change the number of workers. Those that leave finish their tasks first."""
        with self.changed:
            self.target = count
            staying = [worker for worker in self.ready if not worker.is_leaving]
            for worker in staying[count:]:
                worker.is_leaving = True
            self._start_missing()
        self.end_leaving()

    def end_leaving(self) -> None:
        """End the workers that leave and have no task."""
        with self.changed:
            done = [worker for worker in self.ready if worker.is_leaving and not worker.out]
            self.ready = [worker for worker in self.ready if worker not in done]
        for worker in done:
            thread = threading.Thread(target=end_actors, args=([worker.actor],), daemon=True)
            self._ending.append(thread)
            thread.start()

    def remove(self, worker: PoolWorker, reason: str) -> None:
        """Remove a worker that died, and start another in its place."""
        with self.changed:
            if worker not in self.ready:
                return
            self.ready.remove(worker)
            if not self.ready:
                self._empty_since = time.monotonic()
            _log.warning(
                "gpupipe: a Ray worker on node %s ended (%s); its %s go to others",
                worker.facts.node,
                reason,
                counted(len(worker.out), "batch", "batches"),
            )
            ray.kill(worker.actor)
            self._start_missing()

    def close(self) -> None:
        """End all workers, and wait until no thread of this pool runs. Idempotent."""
        with self.changed:
            self._is_closed = True
            workers, self.ready = self.ready, []
            starting = dict(self._starting)
        if ray.is_initialized():
            end_actors([worker.actor for worker in workers])
            for actor in starting.values():
                ray.kill(actor)
        for thread in (*starting, *self._ending):
            thread.join()

    def _start_missing(self) -> None:
        """Start workers until there are as many as there should be. The caller has the lock."""
        staying = sum(not worker.is_leaving for worker in self.ready)
        for _ in range(self.target - staying - len(self._starting)):
            if self._is_closed:
                return
            actor = create_actor(self._cluster, self._options, self.job)
            thread = threading.Thread(target=self._bring_up, args=(actor,), daemon=True)
            self._starting[thread] = actor
            thread.start()

    def _bring_up(self, actor: Any) -> None:
        """Wait until an actor is placed, check it, and let it build its engine."""
        worker: PoolWorker | None = None
        failure: Exception | None = None
        try:
            worker = self._build(actor)
        except ray.exceptions.RayTaskError as e:
            failure = EngineError(f"a Ray worker failed: {e}")
        except ray.exceptions.RayError as e:
            self._failed_starts += 1
            _log.info("gpupipe: a Ray worker ended before it was ready: %s", e)
            if self._failed_starts >= _MAX_FAILED_STARTS:
                failure = EngineError(
                    f"{self._failed_starts} Ray workers in a row ended before they were ready; "
                    f"the last: {e}"
                )
        except Exception as e:
            failure = e
        with self.changed:
            self._starting.pop(threading.current_thread(), None)
            self._placed.discard(threading.current_thread())
            if self._is_closed:
                return
            if worker is not None:
                self._failed_starts = 0
                self.ready.append(worker)
            elif failure is not None:
                self._failure = failure
            else:
                self._start_missing()
            self.changed.notify_all()

    def _build(self, actor: Any) -> PoolWorker:
        facts: WorkerFacts = ray.get(actor.describe.remote())
        with self.changed:
            self._placed.add(threading.current_thread())
            self._reference = self._reference or facts
        self._check_versions(facts, self._reference)
        device = "gpu:0" if self._options.gpus else "cpu"
        arguments = [self.job.ref], self._options.engine, device, self.job.paths
        error: Exception | None = ray.get(actor.build.remote(*arguments))
        if error is not None:
            raise error
        return PoolWorker(actor, facts)

    def _check_versions(self, facts: WorkerFacts, first: WorkerFacts) -> None:
        own = {"gpupipe": list_versions()["gpupipe"]}
        difference = explain_difference(
            own, "the trainer's node", facts.versions, facts.node
        ) or explain_difference(first.versions, first.node, facts.versions, facts.node)
        if difference:
            raise EngineError(
                f"the nodes of the Ray cluster would make different batches: {difference}. Install "
                "the same versions on all nodes"
            )

    def _count_unplaced(self) -> int:
        """Return how many workers have no place yet. The caller has the lock."""
        return len(self._starting) - len(self._placed)

    def _explain_no_room(self, gave_up: bool) -> str:
        """Return what the trainer waits for, or why it gave up."""
        return explain_no_room(
            self._cluster, self._options, self.target, self._count_unplaced(), gave_up
        )
