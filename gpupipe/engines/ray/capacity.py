"""What fits into a cluster: workers on its CPUs, and batches in the object store of a node.

Ray writes objects to disk once a store is fuller than its spilling threshold, which costs more time
than any batch. So the window of a trainer is chosen, before any batch is made, such that this never
happens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod

import torch

from gpupipe.config import LoaderConfig, RayConfig
from gpupipe.engines.base import Job
from gpupipe.engines.ray.cluster import Cluster
from gpupipe.errors import EngineError, counted

_log = logging.getLogger("gpupipe")
USABLE_SHARE = 0.8
"""Ray's default of `object_spilling_threshold`."""
_MB = 1e6
_HELD = 2
"""Batches that the consumer holds: the current one and the one before it."""
_MIN_WINDOW = 2


def count_workers(options: LoaderConfig, cluster: Cluster) -> int:
    """Return how many workers this trainer starts with."""
    workers = options.ray.workers
    if isinstance(workers, tuple):
        return workers[0]
    if workers != "auto":
        return workers
    share = cluster.total_cpus() / options.ray.cpus / options.shard.world_size
    free = cluster.free_cpus() / options.ray.cpus
    return max(1, int(min(free, share)))


def explain_no_room(
    cluster: Cluster, options: RayConfig, wanted: int, missing: int, gave_up: bool
) -> str:
    """Return what the trainer waits for, or why it gave up.

    Args:
        cluster: The cluster.
        options: The settings.
        wanted: How many workers there should be.
        missing: How many of them have no place.
        gave_up: Whether it gave up.
    """
    gpus = f" and {options.gpus:g} GPUs" if options.gpus else ""
    text = (
        f"engine ray {'waited' if gave_up else 'waits'} for a place for {missing} of "
        f"{counted(wanted, 'worker')}, each with {counted(options.cpus, 'CPU')}{gpus}: "
        f"{cluster.free_cpus():g} of the {cluster.total_cpus():g} CPUs on "
        f"{counted(len(cluster.nodes()), 'node')} are free, and the largest node has "
        f"{cluster.largest_node_cpus():g}"
    )
    if not gave_up:
        return f"{text}; it gives up after {options.wait:g} seconds (loader.ray.wait)"
    return (
        f"{text}; it gave up after {options.wait:g} seconds: lower loader.ray.workers or "
        "loader.ray.cpus, add nodes, or set loader.ray.wait higher"
    )


@dataclass(frozen=True)
class Demand:
    """What a trainer puts into the object store of its node.

    Attributes:
        batch_bytes: The size of a batch as workers send it.
        finished: Finished batches that wait for the consumer.
        trainers: How many trainers share the node.
        store_bytes: The size of the node's object store.
    """

    batch_bytes: int
    finished: int
    trainers: int
    store_bytes: int

    @property
    def largest_window(self) -> int:
        """How many tasks of each trainer may be out."""
        usable = USABLE_SHARE * self.store_bytes / self.trainers
        return int(usable / self.batch_bytes) - self.finished - _HELD


def choose_window(demand: Demand, wanted: int, is_explicit: bool) -> int:
    """Return how many tasks may be out.

    Args:
        demand: What the batches need.
        wanted: The number that keeps all workers busy, or `loader.hwm`.
        is_explicit: Whether the config has `loader.hwm`.

    Raises:
        EngineError: The object store is too small.
    """
    largest = demand.largest_window
    if wanted <= largest:
        return wanted
    if is_explicit or largest < _MIN_WINDOW:
        raise EngineError(_explain(demand, wanted if is_explicit else _MIN_WINDOW))
    _log.warning(
        "gpupipe: %d instead of %d batches are made ahead, since Ray's object store is %.0f MB "
        "and a batch %.1f MB",
        largest,
        wanted,
        demand.store_bytes / _MB,
        demand.batch_bytes / _MB,
    )
    return largest


def _explain(demand: Demand, window: int) -> str:
    count = (window + demand.finished + _HELD) * demand.trainers
    return (
        f"Ray's object store on this node is too small: {count} batches of "
        f"{demand.batch_bytes / _MB:.1f} MB need {count * demand.batch_bytes / _MB:.0f} MB, and "
        f"{USABLE_SHARE:.0%} of {demand.store_bytes / _MB:.0f} MB are usable before Ray writes to "
        "disk: lower loader.batch_size or loader.hwm, keep loader.ray.ship at uint8, or start Ray "
        "with a larger --object-store-memory"
    )


def batch_bytes_of(job: Job) -> int | None:
    """Return the size of the largest batch of any epoch, from the specs of its fields.

    None if the specs leave a size open.
    """
    phases: list[int] = []
    for pipeline in job.pipeline.phases:
        specs = [pipeline.output_spec_of(name) for name in pipeline.outputs]
        if any(spec.encoded or None in spec.shape for spec in specs):
            return None
        dtypes = [
            job.loader.dtype or spec.dtype if name in pipeline.main_outputs else spec.dtype
            for name, spec in zip(pipeline.outputs, specs, strict=True)
        ]
        sizes = [
            prod(n for n in spec.shape if n is not None) * getattr(torch, dtype).itemsize
            for spec, dtype in zip(specs, dtypes, strict=True)
        ]
        phases.append(sum(sizes) * job.loader.batch_size)
    return max(phases)
