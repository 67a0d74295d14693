"""Checks that the batches of a trainer fit the object store, before any is made.

Ray writes objects to disk once a store is fuller than its spilling threshold, which costs more time
than any batch. So the window of a trainer is chosen such that this never happens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod

import torch

from gpupipe.engines.base import Job
from gpupipe.errors import EngineError

_log = logging.getLogger("gpupipe")
USABLE_SHARE = 0.8
"""Ray's default of `object_spilling_threshold`."""
_MB = 1e6
_HELD = 2
"""Batches that the consumer holds: the current one and the one before it."""
_MIN_WINDOW = 2


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
