"""The status of a trainer's Ray workers, for `gpupipe status ray`, and how long the trainer waits.

A trainer with `engine: ray` listens at no port. While its loader is open, it writes its status to a
file in the cache folder once a second. `gpupipe status ray` reads the files of all trainers that
share this cache folder. Only `read_object_store` needs Ray.
"""

import json
import logging
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from gpupipe.errors import counted
from gpupipe.protocol.peers import host_id, start_time
from gpupipe.runtime.files import cache_dir, write_atomically

if TYPE_CHECKING:
    from gpupipe.engines.base import Batch
    from gpupipe.sampling.sampler import Plan

_log = logging.getLogger("gpupipe")
_SECONDS = 1.0
_STORE_SECONDS = 5.0
_SILENT_SECONDS = 10.0
_FORGOTTEN_SECONDS = 600.0
_file_numbers = count()


@dataclass(frozen=True)
class ObjectStore:
    """Ray's counters of the object stores, summed over all nodes.

    Attributes:
        used: Bytes that the stores hold.
        size: Bytes that the stores can hold.
        spilled: Bytes that Ray has written from the stores to disks since the cluster started.
    """

    used: int
    size: int
    spilled: int


@dataclass(frozen=True)
class TrainerStatus:
    """The state of a trainer's workers.

    Attributes:
        rank: The trainer's rank.
        world_size: How many trainers share the samples.
        workers: For each ready worker: the name of its node, and the number of its tasks.
        target: The target number of workers.
        tasks_out: The number of plans taken from the sampler whose batches are not delivered yet.
        window: The maximum of `tasks_out`.
        batches: The number of delivered batches.
        wait_share: The share of the iterations' time that the trainer waited for batches, 0 to 1.
        store: The counters of the object stores on rank 0; None on all other ranks.
    """

    rank: int
    world_size: int
    workers: Sequence[tuple[str, int]]
    target: int
    tasks_out: int
    window: int
    batches: int
    wait_share: float
    store: ObjectStore | None = None


class ObjectStoreReader:
    """Reads the object stores' counters at most every five seconds: a read asks all nodes."""

    def __init__(self) -> None:
        self._store: ObjectStore | None = None
        self._asked = 0.0

    def read(self) -> ObjectStore | None:
        """Return the newest counters, or None if reading them failed."""
        if time.monotonic() > self._asked + _STORE_SECONDS:
            self._asked = time.monotonic()
            try:
                self._store = read_object_store()
            except Exception:  # a status without the counters is still useful
                self._store = None
                _log.debug("Ray's counters are not known", exc_info=True)
        return self._store


def read_object_store() -> ObjectStore:
    """Ask all nodes for the counters of their object stores, through the node of this process.

    By default, Ray asks the first listed node, which may have died seconds ago.
    """
    import ray
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


class WaitMeter:
    """Measures how long a consumer waits for batches, and how long it uses them.

    Args:
        on_step: Called for each batch with two durations in seconds: the wait for this batch, and
            the use of the batch before it. It is not called for the first batch of an epoch or
            iteration, so that the time between epochs does not count. None: nothing is called.
        clock: Returns the time in seconds.

    Attributes:
        batches: The number of batches that were delivered.
        waited: Seconds that the consumer spent waiting for batches.
        used: Seconds that the consumer spent between getting a batch and asking for the next.
    """

    def __init__(
        self,
        on_step: Callable[[float, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_step, self._clock = on_step, clock
        self.batches = 0
        self.waited = self.used = 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time spent waiting for batches, 0 to 1; 0 before the first batch."""
        total = self.waited + self.used
        return self.waited / total if total else 0.0

    def measure(self, batches: "Iterable[tuple[Plan, Batch]]") -> "Iterator[tuple[Plan, Batch]]":
        """Yield the plans and batches unchanged, and measure the times between them."""
        asked = self._clock()
        used: float | None = None
        for plan, batch in batches:
            delivered = self._clock()
            self.waited += delivered - asked
            self.batches += 1
            if self._on_step is not None and used is not None:
                self._on_step(delivered - asked, used)
            yield plan, batch
            del batch  # its memory is the consumer's alone
            asked = self._clock()
            self.used += asked - delivered
            used = None if plan.last else asked - delivered


class StatusFile:
    """Writes the status of this process's trainer to a file every second, on a thread.

    The thread does not keep the trainer alive. The thread ends, and removes the file, after `close`
    or after the object of `describe` is gone.

    Args:
        describe: A bound method that returns the status.
    """

    def __init__(self, describe: Callable[[], TrainerStatus]) -> None:
        self._describe = WeakMethod(describe)
        name = f"{platform.node()}-{os.getpid()}-{next(_file_numbers)}.json"
        self._path = _folder() / name
        self._started = time.time()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpupipe ray status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and remove the file. Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set() and (describe := self._describe()) is not None:
            try:
                self._write(describe())
            except Exception:  # a status must not end a training
                _log.debug("no status was written", exc_info=True)
            del describe
            self._closed.wait(_SECONDS)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self, status: TrainerStatus) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        process = {
            "host": platform.node(),
            "host_id": host_id(),
            "pid": os.getpid(),
            "start_time": start_time(os.getpid()),
            "started": self._started,
            "written": time.time(),
        }
        with write_atomically(self._path) as temporary:
            temporary.write_text(json.dumps(asdict(status) | process), encoding="utf-8")


def read_statuses() -> list[dict[str, Any]]:
    """Return the status of each trainer that uses this cache folder, sorted by start time and rank.

    Each status is a TrainerStatus as a dict, with the keys of its process: "host", "host_id",
    "pid", "start_time", and the times "started" and "written". Removes files of ended trainers.
    """
    statuses = []
    for path in sorted(_folder().glob("*.json")):
        try:
            status = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # removed meanwhile
            continue
        if _has_ended(status):
            path.unlink(missing_ok=True)
        else:
            statuses.append(status)
    return sorted(statuses, key=lambda status: (status["started"], status["rank"]))


def format_statuses(statuses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format statuses as lines: one or two for each trainer, then one for each node."""
    return [line for status in statuses for line in _format(status)]


def _format(status: Mapping[str, Any]) -> Iterator[str]:
    now = time.time()
    nodes = Counter(node for node, _ in status["workers"])
    ready, wanted = len(status["workers"]), counted(status["target"], "worker")
    silence = now - status["written"]
    yield (
        f"{status['host']}:{status['pid']}, rank {status['rank']} of {status['world_size']}, up "
        f"{now - status['started']:,.0f} s: {ready} of {wanted} on {counted(len(nodes), 'node')}, "
        f"{status['tasks_out']} of {status['window']} tasks out, "
        f"{counted(status['batches'], 'batch', 'batches')}, waits {status['wait_share']:.0%} of "
        f"its time" + (f", silent for {silence:.0f} s" if silence > _SILENT_SECONDS else "")
    )
    for node, workers in nodes.items():
        tasks = sum(n for name, n in status["workers"] if name == node)
        yield f"  {node}: {counted(workers, 'worker')}, {counted(tasks, 'task')}"
    if store := status["store"]:
        yield (
            f"  object store: {store['used'] / 1e9:.2f} of {store['size'] / 1e9:.2f} GB, "
            f"{store['spilled'] / 1e9:.2f} GB spilled"
        )


def _has_ended(status: Mapping[str, Any]) -> bool:
    """Return whether a trainer has ended.

    A trainer on another host counts as ended after ten minutes without a new status.
    """
    if host_id() and status["host_id"] == host_id():
        return bool(start_time(status["pid"]) != status["start_time"])
    return bool(time.time() - status["written"] > _FORGOTTEN_SECONDS)


def _folder() -> Path:
    return cache_dir() / "ray"
