"""Connects to a Ray cluster, or starts a Ray on this machine; the actors that it has room for."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import ray_constants, services
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gpupipe.config import LoaderConfig, RayConfig
from gpupipe.engines.ray.actor import WorkerActor
from gpupipe.errors import EngineError, counted
from gpupipe.runtime.devices import cores

_log = logging.getLogger("gpupipe")
_lock = threading.Lock()
_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 10.0
_users_of_own_ray = 0
"""How many engines use the Ray that this process started. The last one shuts it down."""


@dataclass
class Cluster:
    """A connection to Ray.

    Attributes:
        is_own: Whether this process started the Ray, and this connection uses it.
        node_id: Ray's id of the node of this process.
    """

    is_own: bool
    node_id: str

    def free_cpus(self) -> float:
        """Return how many CPUs no actor and no task holds."""
        return float(ray.available_resources().get("CPU", 0))

    def total_cpus(self) -> float:
        """Return how many CPUs the cluster has."""
        return float(ray.cluster_resources().get("CPU", 0))

    def largest_node_cpus(self) -> float:
        """Return how many CPUs the largest node has."""
        return float(max((node["Resources"].get("CPU", 0) for node in self.nodes()), default=0))

    def object_store_bytes(self) -> int:
        """Return the size of the object store of this process's node."""
        (own,) = (node for node in self.nodes() if node["NodeID"] == self.node_id)
        return int(own["Resources"].get("object_store_memory", 0))

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are alive, as Ray describes them."""
        return [node for node in ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Shut down the Ray that this process started, after its last user. Idempotent."""
        global _users_of_own_ray  # noqa: PLW0603
        with _lock:
            if self.is_own:
                self.is_own = False
                _users_of_own_ray -= 1
                if not _users_of_own_ray and ray.is_initialized():
                    ray.shutdown()


def connect(address: str) -> Cluster:
    """Connect to a cluster.

    Args:
        address: A value of `loader.ray.address`.

    Raises:
        EngineError: There is no cluster at the address.
    """
    with _lock:
        is_own = _connect(address)
    return Cluster(is_own, ray.get_runtime_context().get_node_id())


def _connect(address: str) -> bool:
    """Connect, and return whether the Ray is this process's own."""
    global _users_of_own_ray  # noqa: PLW0603
    if ray.is_initialized():
        if address not in ("auto", ray.get_runtime_context().gcs_address):
            raise EngineError(
                f"loader.ray.address is {address}, but this process is connected to the Ray at "
                f"{ray.get_runtime_context().gcs_address}: set address to auto, or call "
                "ray.shutdown() first"
            )
        _users_of_own_ray += bool(_users_of_own_ray)
        return bool(_users_of_own_ray)
    named = address if address != "auto" else os.environ.get("RAY_ADDRESS", "")
    try:
        if not _is_listening(named or services.find_bootstrap_address(None) or ""):
            raise ConnectionError
        _init(address=address)
    except ConnectionError as e:
        if named:
            source = "RAY_ADDRESS" if address == "auto" else "loader.ray.address"
            raise EngineError(
                f"{source}: no Ray cluster answers at {named}: start one with 'ray start --head' "
                "there, correct the address, or set loader.ray.address to auto without "
                "RAY_ADDRESS to start a Ray on this machine"
            ) from e
    else:
        return False
    _log.warning(
        "gpupipe: no Ray cluster runs here, so a Ray with %d CPUs was started on this machine; it "
        "ends with the loader. Set loader.ray.address to use a cluster",
        cores(),
    )
    with _only_loopback():
        _init(address="local", num_cpus=cores(), include_dashboard=False)
    _users_of_own_ray = 1
    return True


def _is_listening(address: str) -> bool:
    """Return whether anything listens at HOST:PORT; True for other forms of an address.

    Ray writes the address of the newest cluster of this machine to a file, which a cluster that was
    killed leaves behind. Ray itself would try such an address for four minutes.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return True
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _init(**options: Any) -> None:
    ray.init(logging_level=logging.WARNING, log_to_driver=False, **options)


@contextmanager
def _only_loopback() -> Iterator[None]:
    """Let a Ray that is started here bind its ports to 127.0.0.1.

    Ray does so on macOS and Windows only. Elsewhere it listens on all networks, and replaces a
    `_node_ip_address` of 127.0.0.1 by the address of this machine. Ray's daemons and workers read
    the variable when they start, and this process has read it when it imported ray.
    """
    name, before = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", ray_constants.ENABLE_RAY_CLUSTER
    variable = os.environ.get(name)
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[name]
        if variable is not None:
            os.environ[name] = variable


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


def create_actor(cluster: Cluster, options: RayConfig, depth: int) -> Any:
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
        "max_concurrency": 2 * depth + 4,
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
