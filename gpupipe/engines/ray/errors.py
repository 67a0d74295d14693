"""The words of errors that come from workers and from the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupipe.config import RayConfig
from gpupipe.errors import EngineError, GpupipeError, SampleError, StepError, counted


def name_node(error: Exception, node: str, trace: str = "") -> Exception:
    """Return the same exception as a worker raised, with the name of its node.

    An exception that is no GpupipeError becomes an EngineError with the traceback.
    """
    if trace:
        return EngineError(f"a Ray worker on node {node} failed:\n{trace}")
    if isinstance(error, SampleError):
        return SampleError(error.path, f"{error.reason} (on node {node})")
    if isinstance(error, StepError):
        return StepError(f"{error} (on node {node})", error.traceback)
    if isinstance(error, GpupipeError):
        try:
            return type(error)(f"{error} (on node {node})")
        except TypeError:  # an exception of a plugin, with other arguments
            return error
    return EngineError(f"a Ray worker on node {node} failed: {error!r}")


def explain_missing_paths(node: str, paths: Sequence[str]) -> str:
    """Return the message for a node that does not see the data."""
    return (
        f"node {node} of the Ray cluster does not see {paths[0]}, which this trainer sees: mount "
        "the data under the same path on all nodes, or read it with source: remote, which gives "
        "each node a cache of its own"
    )


def explain_no_room(
    options: RayConfig,
    wanted: int,
    placed: int,
    free: float,
    nodes: Sequence[dict[str, Any]],
    gave_up: bool,
) -> str:
    """Return what the trainer waits for, or why it gave up."""
    gpus = f" and {options.gpus:g} GPUs" if options.gpus else ""
    each = f"{counted(options.cpus, 'CPU')}{gpus}"
    largest = max((node["Resources"].get("CPU", 0) for node in nodes), default=0)
    total = sum(node["Resources"].get("CPU", 0) for node in nodes)
    verb = "waited" if gave_up else "waits"
    text = (
        f"engine ray {verb} for a place for {wanted - placed} of {counted(wanted, 'worker')}, each "
        f"with {each}: {free:g} of the {total:g} CPUs on {counted(len(nodes), 'node')} are free, "
        f"and the largest node has {largest:g}"
    )
    if not gave_up:
        return f"{text}; it gives up after {options.wait:g} seconds (loader.ray.wait)"
    return (
        f"{text}; it gave up after {options.wait:g} seconds: lower loader.ray.workers or "
        "loader.ray.cpus, add nodes, or set loader.ray.wait higher"
    )
