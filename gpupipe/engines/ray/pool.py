"""The Ray workers of one trainer: starts them, replaces those that die, and ends them."""

import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from gpupipe.dataset.index import Index
from gpupipe.engines.base import Job
from gpupipe.engines.ray.actor import WorkerFacts, explain_difference
from gpupipe.engines.ray.cluster import Cluster, create_actor, end_actors, explain_no_room
from gpupipe.engines.ray.worker import BatchAnswer
from gpupipe.errors import EngineError, counted
from gpupipe.runtime.installation import own_version
from gpupipe.sampling.sampler import Plan

_log = logging.getLogger("gpupipe")
_PATIENCE_BEFORE_LOG = 3.0
_TICK = 0.25
_MAX_FAILED_STARTS = 5
"""The pool gives up if this many workers in a row end before they are ready."""


@dataclass(eq=False)
class PoolWorker:
    """A worker that is ready for tasks.

    Attributes:
        actor: Ray's handle of the actor.
        facts: The worker's node, process and versions.
        out: The tasks that the worker has, as positions in the iteration.
        answered: time.monotonic() of the last of these events: the worker became ready, answered,
            or got a task while it had none.
        is_leaving: Whether the worker gets no more tasks, and ends when it has finished its tasks.
    """

    actor: Any
    facts: WorkerFacts
    out: set[int] = field(default_factory=set)
    answered: float = field(default_factory=time.monotonic)
    is_leaving: bool = False

    def send(self, run: int, step: int, plan: Plan) -> tuple[Any, Future[BatchAnswer | None]]:
        """Send a plan; return Ray's reference, which the caller must keep, and a future answer."""
        ref = self.actor.make.remote(run, step, replace(plan, tag=None, siblings=None))
        return ref, ref.future()


@dataclass(eq=False)
class _StartingWorker:
    """A worker that is not ready yet.

    Attributes:
        actor: Ray's handle of the actor.
        ref: Ray's reference of the result of `describe`; after that call, of `build`.
        facts: The result of `describe`; None until the cluster has placed the worker.
    """

    actor: Any
    ref: Any
    facts: WorkerFacts | None = None


def list_visible_paths(index: Index) -> tuple[str, ...]:
    """Return each column's root folder and first file, if they exist on this machine.

    Each worker must be able to read these paths too.
    """
    paths = []
    for column in index.columns.values():
        root = getattr(column, "root", "")
        span = column.span(0) if len(column) else None
        paths += [root] if root else []
        paths += [span.path] if span is not None else []
    return tuple(path for path in dict.fromkeys(paths) if Path(path).exists())


def find_sample_bytes(job: Job) -> int:
    """Return the size in bytes of the largest sample of any epoch, from the specs of its fields.

    Returns 0 if a spec leaves a size open, or a field holds encoded files.
    """
    sizes = []
    for pipeline in job.pipeline.phases:
        sizes.append(0)
        for name in pipeline.outputs:
            spec = pipeline.output_spec_of(name)
            if spec.encoded or None in spec.shape:
                return 0
            dtype = (job.loader.dtype if name in pipeline.main_outputs else None) or spec.dtype
            sizes[-1] += prod(n or 0 for n in spec.shape) * getattr(torch, dtype).itemsize
    return max(sizes)


class RayWorkerPool:
    """Starts and ends the workers of one trainer.

    A worker starts in three steps: Ray places its actor, the actor reports its package versions,
    and it builds its engine. Then the worker is ready. Each call of `poll` takes the steps that are
    due; the dispatcher calls `poll` regularly.

    Args:
        cluster: The cluster.
        job: The job of every worker. Each node fetches it once from the object store.
        count: The target number of workers.

    Attributes:
        depth: The maximum number of tasks that a worker has at once.
        changed: A condition whose lock guards the pool and the tasks of its workers.
        ready: The workers that are ready for tasks.
        target: The target number of workers. `resize` changes it.
    """

    def __init__(self, cluster: Cluster, job: Job, count: int) -> None:
        self._cluster, self._loader, self._options = cluster, job.loader, job.loader.ray
        self._sample_bytes = find_sample_bytes(job)
        self._job, self._paths = ray.put(job), list_visible_paths(job.index)
        # DALI takes twice `prefetch` plans ahead. One more waits, and one is on its way.
        self.depth = 2 * job.loader.prefetch + 2
        self.changed = threading.Condition()
        self.ready: list[PoolWorker] = []
        self.target = count
        self._starting: list[_StartingWorker] = []
        self._failed_starts = 0
        self._reference: WorkerFacts | None = None
        """The facts of the first worker. All later workers must have its versions."""
        self._empty_since = time.monotonic()

    @property
    def is_settled(self) -> bool:
        """Whether the number of ready workers equals `target`."""
        with self.changed:
            return len(self.ready) == self.target

    def start(self) -> None:
        """Start the workers, and wait until all are ready.

        Raises:
            EngineError: The cluster cannot place the workers within `ray.wait` seconds, or package
                versions differ between nodes.
            GpupipeError: A worker cannot build its engine.
        """
        started = time.monotonic()
        log_after = _PATIENCE_BEFORE_LOG
        self._start_missing()
        while self._starting:
            self.poll(_TICK)
            waited = time.monotonic() - started
            if self._count_unplaced() and waited >= self._options.wait:
                raise EngineError(self._explain_no_room(gave_up=True))
            if self._count_unplaced() and waited >= log_after:
                _log.warning("gpupipe: %s", self._explain_no_room(gave_up=False))
                log_after = float("inf")

    def poll(self, seconds: float = 0.0) -> None:
        """Process the answers of starting workers, and end leaving workers that have no tasks left.

        Args:
            seconds: How long to wait for the answer of a starting worker.

        Raises:
            EngineError: Package versions differ between nodes, several workers in a row ended
                before they were ready, or there was no worker for over `ray.wait` seconds because
                the cluster had no room.
            GpupipeError: A worker cannot build its engine.
        """
        with self.changed:
            refs = [worker.ref for worker in self._starting]
            answered, _ = ray.wait(refs, timeout=seconds)
            for worker in [worker for worker in self._starting if worker.ref in answered]:
                self._take_answer(worker)
            if self.ready or len(self._starting) > self._count_unplaced():
                self._empty_since = time.monotonic()
            elif time.monotonic() - self._empty_since > self._options.wait:
                raise EngineError(self._explain_no_room(gave_up=True))
            self._end_leaving()

    def measure_batch(self) -> int:
        """Return the size in bytes of a batch as workers send it; 0 if it is not known.

        If the specs of the fields do not state the size, a worker makes one sample to measure it.
        """
        batch_size = self._loader.batch_size
        if self._sample_bytes:
            return self._sample_bytes * batch_size
        ref, _ = self.ready[0].send(-1, 0, Plan(0, np.zeros(1, np.int64), 1, False))
        try:
            answer: BatchAnswer | None = ray.get(ref)
        except ray.exceptions.RayError:
            return 0
        return 0 if answer is None else answer.nbytes * batch_size

    def resize(self, count: int) -> None:
        """Change the target number of workers. Workers that leave finish their tasks first."""
        with self.changed:
            self.target = count
            staying = [worker for worker in self.ready if not worker.is_leaving]
            for worker in staying[count:]:
                worker.is_leaving = True
            self._start_missing()
            self._end_leaving()

    def remove(self, worker: PoolWorker, reason: str) -> None:
        """Remove a worker that died, and start another in its place."""
        with self.changed:
            if worker not in self.ready:
                return
            self.ready.remove(worker)
            lost = counted(len(worker.out), "batch", "batches")
            _log.warning(
                f"gpupipe: a Ray worker on node {worker.facts.node} ended ({reason}); its {lost} "
                "go to others"
            )
            ray.kill(worker.actor)
            self._start_missing()

    def close(self) -> None:
        """End all workers. Idempotent."""
        with self.changed:
            ready, self.ready = self.ready, []
            starting, self._starting = self._starting, []
        if ray.is_initialized():
            end_actors([worker.actor for worker in ready])
            for worker in starting:
                ray.kill(worker.actor)

    def _start_missing(self) -> None:
        """Start workers until `target` are ready or starting; leaving workers do not count."""
        staying = sum(not worker.is_leaving for worker in self.ready)
        for _ in range(self.target - staying - len(self._starting)):
            actor = create_actor(self._cluster, self._options, self.depth)
            self._starting.append(_StartingWorker(actor, actor.describe.remote()))

    def _end_leaving(self) -> None:
        """End the leaving workers that have no task. Call it while holding `changed`."""
        done = [worker for worker in self.ready if worker.is_leaving and not worker.out]
        self.ready = [worker for worker in self.ready if worker not in done]
        for worker in done:
            worker.actor.close.remote()  # then Ray ends the actor, to which nothing refers any more

    def _take_answer(self, worker: _StartingWorker) -> None:
        """Process the answer of a starting worker to `describe` or `build`.

        After `describe`, call `build`; after `build`, move the worker to `ready`. If the worker
        died, start another one.
        """
        try:
            answer: Any = ray.get(worker.ref)
        except ray.exceptions.RayTaskError as e:
            raise EngineError(f"a Ray worker failed: {e}") from e
        except ray.exceptions.RayError as e:
            _log.info("gpupipe: a Ray worker ended before it was ready: %s", e)
            failed_starts = self._failed_starts + 1
            if failed_starts >= _MAX_FAILED_STARTS:  # the worker stays: later polls raise again
                raise EngineError(
                    f"{failed_starts} Ray workers in a row ended before they were ready; "
                    f"the last: {e}"
                ) from e
            self._failed_starts = failed_starts
            self._starting.remove(worker)
            self._start_missing()
            return
        if worker.facts is None:
            self._check_versions(answer)
            worker.facts = answer
            device = "gpu:0" if self._options.gpus else "cpu"
            worker.ref = worker.actor.build.remote(
                [self._job], self._options.engine, device, self._paths
            )
        elif answer is not None:
            raise answer
        else:
            self._starting.remove(worker)
            self._failed_starts = 0
            self.ready.append(PoolWorker(worker.actor, worker.facts))

    def _check_versions(self, facts: WorkerFacts) -> None:
        self._reference = first = self._reference or facts
        own = {"gpupipe": own_version()}
        for node, versions in (("the trainer's node", own), (first.node, first.versions)):
            if difference := explain_difference(versions, node, facts.versions, facts.node):
                raise EngineError(
                    f"the nodes of the Ray cluster would make different batches: {difference}. "
                    "Install the same versions on all nodes"
                )

    def _count_unplaced(self) -> int:
        """Return how many starting workers Ray has not placed yet."""
        return sum(worker.facts is None for worker in self._starting)

    def _explain_no_room(self, gave_up: bool) -> str:
        return explain_no_room(
            self._cluster, self._options, self.target, self._count_unplaced(), gave_up
        )
