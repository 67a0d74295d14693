"""The actor: what runs in a worker's process, with the name and the versions of its node.

It imports torch and DALI only when it builds its engine. So a worker says early that it is placed,
and which versions it has.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from gpupipe.errors import EngineError, GpupipeError, SampleError, StepError
from gpupipe.runtime.installation import installed_version, own_version

if TYPE_CHECKING:
    from gpupipe.engines.ray.messages import BatchAnswer
    from gpupipe.engines.ray.worker import BatchMaker
    from gpupipe.sampling.sampler import Plan

_PACKAGES = {
    "DALI": ("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
    "torchvision": ("torchvision",),
}


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
    """Holds one engine. Its methods return errors, and raise none.

    The trainer calls `describe` and `build` first. It discards plans of workers that it has built,
    and lets only these end their engine.
    """

    _maker: BatchMaker

    def __init__(self) -> None:
        self._node = get_node_name()

    def describe(self) -> WorkerFacts:
        """Return this worker's node, process and package versions, for the trainer to compare."""
        node_id = ray.get_runtime_context().get_node_id()
        return WorkerFacts(self._node, node_id, os.getpid(), list_versions())

    def build(
        self, jobs: Sequence[Any], engine: str, device: str, paths: Sequence[str]
    ) -> Exception | None:
        """Build the engine; return why it cannot be built, or None.

        Args:
            jobs: Ray's reference of the job, which Ray keeps once on each node.
            engine: The name of the engine, or "auto".
            device: "cpu" or "gpu:0".
            paths: Files and folders that the trainer sees, and this worker must see.
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

    def make(self, run: int, step: int, plan: Plan) -> BatchAnswer | None:
        """Make the batch of a plan; None if the trainer no longer wants it.

        Args:
            run: The number of the iteration that asks. Plans of earlier ones are discarded.
            step: The position of the plan in that iteration.
            plan: The plan.
        """
        from gpupipe.engines.ray.messages import BatchAnswer

        try:
            return self._maker.make(plan, (run, step))
        except Exception as e:
            return BatchAnswer(error=add_node_name(e, self._node))

    def discard(self, run: int, step: int) -> None:
        """Discard a plan, if its batch is not begun."""
        self._maker.discard((run, step))

    def discard_before(self, run: int) -> None:
        """Discard the plans of earlier iterations whose batches are not begun."""
        self._maker.discard_before(run)

    def close(self) -> None:
        """End the engine."""
        self._maker.close()


def get_node_name() -> str:
    """Return the name of this node for messages: host name and address."""
    return f"{os.uname().nodename} ({ray.util.get_node_ip_address()})"


def add_node_name(error: Exception, node: str) -> Exception:
    """Return the same exception with the name of the node where it was raised.

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
    """Return the version of each package on which the pixels of a batch depend, "none" if missing.

    The names of the packages are the keys.
    """
    versions = {
        name: installed_version(*distributions) or "none"
        for name, distributions in _PACKAGES.items()
    }
    return {"gpupipe": own_version(), **versions}


def explain_difference(
    one: Mapping[str, str], one_node: str, other: Mapping[str, str], other_node: str
) -> str:
    """Return how the versions of two nodes differ, or ""."""
    differences = [
        f"{name} is {one[name]} on {one_node} and {other.get(name, 'none')} on {other_node}"
        for name in one
        if one[name] != other.get(name, "none")
    ]
    return "; ".join(differences)
