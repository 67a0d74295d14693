"""A worker as its trainer sees it: what it builds, and how its actor starts and ends."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gpupipe.config import RayConfig
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Job
from gpupipe.engines.batch_finisher import find_larger_output, find_tail, leave_steps
from gpupipe.engines.ray.actor import WorkerActor, WorkerFacts
from gpupipe.engines.ray.cluster import Cluster
from gpupipe.engines.ray.messages import BatchAnswer
from gpupipe.sampling.sampler import Plan

_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class SharedJob:
    """A job in the object store.

    Attributes:
        ref: Where it is in the object store. Each node fetches it once.
        paths: Files and folders that the trainer sees, and every worker must see.
        depth: How many tasks a worker may have at once.
    """

    ref: Any
    paths: tuple[str, ...]
    depth: int


def split_job(job: Job) -> tuple[Job, Job]:
    """Return the job of the workers, and the job that is left to the trainer.

    With `ray.ship: uint8` those are the last steps that can run on uint8 batches.
    """
    options = job.loader
    positions = find_tail(job.pipeline) if options.ray.ship == "uint8" else ()
    shorter = job.pipeline.without_entries(positions)
    if find_larger_output(shorter) is not None:
        positions, shorter = (), job.pipeline
    threads = options.ray.cpus
    settings: dict[str, Any] = {"dtype": None if positions else options.dtype, "threads": threads}
    # For the DataLoader inside a worker. A fork would copy the locks of Ray's threads.
    settings |= {"workers": threads if threads > 1 else 0}
    if options.multiprocessing_context in (None, "fork"):
        settings |= {"multiprocessing_context": "forkserver"}
    worker_job = replace(
        job, pipeline=shorter, loader=options.model_copy(update=settings), threads=threads
    )
    return worker_job, leave_steps(job, positions)


def share_job(job: Job) -> SharedJob:
    """Put a job into the object store."""
    # DALI takes twice `prefetch` plans ahead. One more waits, and one is on its way.
    return SharedJob(ray.put(job), list_visible_paths(job.index), 2 * job.loader.prefetch + 2)


def list_visible_paths(index: Index) -> tuple[str, ...]:
    """Return files and folders of the data that this process sees: each root, and a first file."""
    paths = []
    for column in index.columns.values():
        root = getattr(column, "root", "")
        span = column.span(0) if len(column) else None
        paths += [root] if root else []
        paths += [span.path] if span is not None else []
    return tuple(path for path in dict.fromkeys(paths) if Path(path).exists())


@dataclass(eq=False)
class PoolWorker:
    """A worker that is ready.

    Attributes:
        actor: Ray's handle.
        facts: What it says of itself.
        out: Its tasks, by their step.
        answered: When it answered last, or became ready.
        is_leaving: It gets no more tasks, and ends after those that it has.
    """

    actor: Any
    facts: WorkerFacts
    out: set[int] = field(default_factory=set)
    answered: float = field(default_factory=time.monotonic)
    is_leaving: bool = False

    def send(self, run: int, step: int, plan: Plan) -> tuple[Any, Future[BatchAnswer | None]]:
        """Send a task; return Ray's reference, which must be kept, and the answer."""
        ref = self.actor.make.remote(run, step, replace(plan, tag=None))
        return ref, ref.future()


def create_actor(cluster: Cluster, options: RayConfig, job: SharedJob) -> Any:
    """Ask Ray for an actor, and return its handle at once."""
    strategies = {
        "spread": "SPREAD",
        "pack": "DEFAULT",
        "local_first": NodeAffinitySchedulingStrategy(
            cluster.node_id, soft=True, _spill_on_unavailable=True
        ),
    }
    settings: dict[str, Any] = {
        "num_cpus": options.cpus,
        "num_gpus": options.gpus or None,
        "scheduling_strategy": strategies[options.placement],
        # Each task waits on a thread of its own; those of an ended iteration may still do so.
        "max_concurrency": 2 * job.depth + 4,
        "max_restarts": 0,
        "max_task_retries": 0,
    }
    return ray.remote(WorkerActor).options(**settings).remote()


def end_actors(actors: list[Any]) -> None:
    """Let actors end their engines, which may have processes of their own, then end them."""
    closing = [actor.close.remote() for actor in actors]
    if closing:
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
    for actor in actors:
        ray.kill(actor)
