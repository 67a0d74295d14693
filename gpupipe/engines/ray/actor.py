"""The actor: what runs in a worker's process. It imports torch and DALI only when it builds.

So a worker says early that it is placed, and which versions it has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpupipe.engines.ray.versions import list_versions

if TYPE_CHECKING:
    from gpupipe.engines.ray.messages import BatchAnswer, BuildAnswer, PlanTask
    from gpupipe.engines.ray.worker import TaskRunner


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker says of itself before it gets any work.

    Attributes:
        node: The name of its node, for messages: host name and address.
        node_id: Ray's id of the node.
        pid: Its process.
        versions: The version of each package on which the pixels depend; "none" if missing.
    """

    node: str
    node_id: str
    pid: int
    versions: dict[str, str]


class WorkerActor:
    """Holds one engine. Its methods answer with values, also for errors."""

    def __init__(self) -> None:
        self._runner: TaskRunner | None = None

    def describe(self) -> WorkerFacts:
        """Return what decides whether this worker fits the others."""
        import ray

        node_id = ray.get_runtime_context().get_node_id()
        node = f"{os.uname().nodename} ({ray.util.get_node_ip_address()})"
        return WorkerFacts(node, node_id, os.getpid(), list_versions())

    def build(
        self, key: str, jobs: list[Any], engine: str, device: str, paths: tuple[str, ...]
    ) -> BuildAnswer:
        """Build the engine.

        Args:
            key: The content hash of the job.
            jobs: Ray's reference of the job, which Ray keeps once on each node.
            engine: The name of the engine, or "auto".
            device: "cpu" or "gpu:0".
            paths: Files and folders that the trainer sees, and this worker must see.
        """
        import ray

        from gpupipe.engines.ray.messages import BuildAnswer
        from gpupipe.engines.ray.worker import BatchMaker, TaskRunner

        missing = tuple(path for path in paths if not os.access(path, os.R_OK))
        if missing:
            return BuildAnswer(missing=missing)
        try:
            self._runner = TaskRunner(key, BatchMaker(ray.get(jobs[0]), engine, device))
        except Exception as e:
            return BuildAnswer(error=e)
        return BuildAnswer(self._runner.engine)

    def make(self, task: PlanTask) -> BatchAnswer | None:
        """Make the batch of a task; None if the trainer no longer wants it."""
        assert self._runner is not None
        return self._runner.make(task)

    def discard(self, run: int, step: int) -> None:
        """Discard a task, if its batch is not begun."""
        if self._runner is not None:
            self._runner.discard((run, step))

    def discard_before(self, run: int) -> None:
        """Discard the tasks of earlier iterations whose batches are not begun."""
        if self._runner is not None:
            self._runner.discard_before(run)

    def close(self) -> None:
        """End the engine."""
        if self._runner is not None:
            self._runner.close()
