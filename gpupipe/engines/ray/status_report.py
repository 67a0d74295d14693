"""Reports the state of a trainer's workers and of the object stores, for its status file."""

from __future__ import annotations

import logging
import time

import ray

from gpupipe.config import Shard
from gpupipe.engines.ray.delivery import Delivery
from gpupipe.engines.ray.pool import RayWorkerPool
from gpupipe.engines.ray.trainer_status import ObjectStore, TrainerStatus, WaitMeter

_STORE_SECONDS = 5.0


class StatusReport:
    """Describes a trainer, whenever it is called.

    Args:
        shard: The trainer's rank.
        pool: Its workers.
        meter: What measures its waiting.
        window: The most tasks that may be out.

    Attributes:
        delivery: The newest iteration, or None.
    """

    def __init__(self, shard: Shard, pool: RayWorkerPool, meter: WaitMeter, window: int) -> None:
        self.delivery: Delivery | None = None
        self._shard, self._pool, self._meter, self._window = shard, pool, meter, window
        self._store: ObjectStore | None = None
        self._asked = 0.0

    def __call__(self) -> TrainerStatus:
        """Return the status of this moment."""
        with self._pool.changed:
            workers = [(worker.facts.node, len(worker.out)) for worker in self._pool.ready]
        return TrainerStatus(
            self._shard.rank,
            self._shard.world_size,
            workers,
            self._pool.target,
            self.delivery.tasks_out if self.delivery is not None else 0,
            self._window,
            self._meter.batches,
            self._meter.wait_share,
            self._object_store(),
        )

    def _object_store(self) -> ObjectStore | None:
        """Return what Ray counts, asked by rank 0 alone: each question goes to all nodes."""
        if self._shard.rank == 0 and time.monotonic() > self._asked + _STORE_SECONDS:
            self._asked = time.monotonic()
            try:
                self._store = read_object_store()
            except Exception:  # the rest of the status is known without the counters
                self._store = None
                logging.getLogger("gpupipe").debug("Ray's counters are not known", exc_info=True)
        return self._store


def read_object_store() -> ObjectStore:
    """Ask all nodes for the counters of their object stores, through the node of this process.

    Ray by itself would ask the first node that is listed, which may have died seconds ago.
    """
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    context = ray.get_runtime_context()
    (own,) = (node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    state = get_state_from_address(context.gcs_address)
    stats = get_memory_info_reply(
        state, own["NodeManagerAddress"], own["NodeManagerPort"]
    ).store_stats
    return ObjectStore(
        stats.object_store_bytes_used, stats.object_store_bytes_avail, stats.spilled_bytes_total
    )
