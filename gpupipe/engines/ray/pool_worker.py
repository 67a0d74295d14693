"""A worker as its trainer sees it: what it builds, how its actor starts and ends."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gpupipe.config import RayConfig
from gpupipe.engines.ray.actor import WorkerActor, WorkerFacts
from gpupipe.engines.ray.cluster import Cluster
from gpupipe.engines.ray.messages import BatchAnswer, PlanTask

_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class SharedJob:
    """A job in the object store.

    Attributes:
        key: Its content hash.
        ref: Where it is in the object store. Each node fetches it once.
        paths: Files and folders that the trainer sees, and every worker must see.
        depth: How many tasks a worker may have at once.
    """

    key: str
    ref: Any
    paths: tuple[str, ...]
    depth: int


@dataclass(eq=False)
class PoolWorker:
    """A worker that is ready.

    Attributes:
        actor: Ray's handle.
        facts: What it says of itself.
        engine: The name of its engine.
        out: When each of its tasks was sent, by the task's step.
        answered: When it answered last, or became ready.
        is_leaving: It gets no more tasks, and ends after those that it has.
    """

    actor: Any
    facts: WorkerFacts
    engine: str
    out: dict[int, float] = field(default_factory=dict)
    answered: float = field(default_factory=time.monotonic)
    is_leaving: bool = False

    def send(self, task: PlanTask) -> tuple[Any, Future[BatchAnswer | None]]:
        """Send a task; return Ray's reference, which must be kept, and the answer."""
        ref = self.actor.make.remote(task)
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
        "scheduling_strategy": strategies[options.placement],
        # Each task waits on a thread of its own; those of an ended iteration may still do so.
        "max_concurrency": 2 * job.depth + 4,
        "max_restarts": 0,
        "max_task_retries": 0,
    }
    if options.gpus:
        settings["num_gpus"] = options.gpus
    return ray.remote(WorkerActor).options(**settings).remote()


def end_actors(actors: list[Any]) -> None:
    """Let actors end their engines, which may have processes of their own, then end them."""
    closing = [actor.close.remote() for actor in actors]
    if closing:
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
    for actor in actors:
        ray.kill(actor)
