"""The Ray actor that runs in each worker's process, and the versions of the worker's packages.

The actor imports torch and DALI only when it builds its engine. So the trainer learns early that
Ray has placed the worker, and which versions the worker has.
"""

import os
import platform
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from gpupipe.errors import EngineError, GpupipeError, SampleError, StepError
from gpupipe.runtime.installation import installed_version, own_version

if TYPE_CHECKING:
    from gpupipe.engines.ray.worker import BatchAnswer, BatchMaker
    from gpupipe.sampling.sampler import Plan

_PACKAGES = {
    "DALI": ("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
    "torchvision": ("torchvision",),
}


@dataclass(frozen=True)
class WorkerFacts:
    """The node, process and package versions that a worker reports before its first task.

    Attributes:
        node: Host name and address of the worker's node, for messages.
        node_id: Ray's id of the node.
        pid: Id of the worker's process.
        versions: The version of each package that affects pixels, by package name; "none" if it
            is not installed.
    """

    node: str
    node_id: str
    pid: int
    versions: dict[str, str]


class WorkerActor:
    """Runs in a worker's process, and makes batches for the trainer with one engine.

    The trainer calls `describe`, then `build`. All other methods need the engine that `build`
    creates. `build` and `make` return exceptions in place of raising them.
    """

    _maker: "BatchMaker"

    def __init__(self) -> None:
        self._node = get_node_name()

    def describe(self) -> WorkerFacts:
        """Return this worker's node, process and package versions, for the trainer to compare."""
        node_id = ray.get_runtime_context().get_node_id()
        return WorkerFacts(self._node, node_id, os.getpid(), list_versions())

    def build(
        self, jobs: Sequence[Any], engine: str, device: str, paths: Sequence[str]
    ) -> Exception | None:
        """Build the engine; return the exception if that fails, else None.

        Args:
            jobs: A list with one Ray reference to the Job. Each node stores one copy of the Job.
            engine: The name of the engine, or "auto".
            device: "cpu" or "gpu:0".
            paths: Files and folders that this worker must be able to read.
        """
        from gpupipe.engines.ray.worker import BatchMaker

        for path in paths:
            if not os.access(path, os.R_OK):
                return EngineError(
                    f"node {self._node} of the Ray cluster does not see {path}, which this trainer "
                    "sees: mount the data under the same path on all nodes, or read it with "
                    "source: remote, which gives each node a cache of its own"
                )
        try:
            self._maker = BatchMaker(ray.get(jobs[0]), engine, device)
        except Exception as e:
            return add_node_name(e, self._node)
        return None

    def make(self, run: int, step: int, plan: "Plan") -> "BatchAnswer | None":
        """Return the batch of a plan, or the error; None if the plan was discarded.

        Args:
            run: The number of the trainer's iteration. Waiting plans of earlier iterations are
                discarded.
            step: The position of the plan in that iteration.
            plan: The plan.
        """
        from gpupipe.engines.ray.worker import BatchAnswer

        try:
            return self._maker.make(plan, (run, step))
        except Exception as e:
            return BatchAnswer(error=add_node_name(e, self._node))

    def discard(self, run: int, step: int) -> None:
        """Discard the plan at position `step` of iteration `run`, unless the engine took it."""
        self._maker.discard((run, step))

    def discard_before(self, run: int) -> None:
        """Discard the plans of iterations before `run` that the engine has not taken yet."""
        self._maker.discard_before(run)

    def close(self) -> None:
        """Finish the batches that the engine has begun, and close the engine."""
        self._maker.close()


def get_node_name() -> str:
    """Return the name of this node for messages: host name and address."""
    return f"{platform.node()} ({ray.util.get_node_ip_address()})"


def add_node_name(error: Exception, node: str) -> Exception:
    """Return an exception of the same type whose message names the node where it was raised.

    An exception that is no GpupipeError becomes an EngineError with the traceback.
    """
    if isinstance(error, SampleError):
        return SampleError(error.path, f"{error.reason} (on node {node})")
    if isinstance(error, StepError):
        return StepError(f"{error} (on node {node})", error.traceback)
    if isinstance(error, GpupipeError):
        try:
            return type(error)(f"{error} (on node {node})")
        except TypeError:  # an exception of a plugin, with other arguments
            return error
    trace = "".join(traceback.format_exception(error))
    return EngineError(f"a Ray worker on node {node} failed:\n{trace}")


def list_versions() -> dict[str, str]:
    """Return the version of each package that affects pixels, by name; "none" if not installed."""
    versions = {
        name: installed_version(*distributions) or "none"
        for name, distributions in _PACKAGES.items()
    }
    return {"gpupipe": own_version(), **versions}


def explain_difference(
    one: Mapping[str, str], one_node: str, other: Mapping[str, str], other_node: str
) -> str:
    """Describe the versions in `one` that differ from those in `other`; "" if none does.

    Args:
        one: The version of each package, by package name.
        one_node: The name of the node with these versions.
        other: The versions on another node.
        other_node: The name of the other node.
    """
    return "; ".join(
        f"{name} is {version} on {one_node} and {other_version} on {other_node}"
        for name, version in one.items()
        if version != (other_version := other.get(name, "none"))
    )
