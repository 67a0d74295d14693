"""Connects to a Ray cluster, or starts Ray on this machine; creates and ends the actors."""

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
from gpupipe.runtime.ranks import cores

_log = logging.getLogger("gpupipe")
_lock = threading.Lock()
_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 10.0
_users_of_own_ray = 0
"""How many engines use the Ray that this process started. The last one shuts it down."""


@dataclass
class Cluster:
    """A connection of this process to a Ray cluster.

    Attributes:
        is_own: Whether this connection uses a Ray that this process started; False after `close`.
        node_id: Ray's id of the node of this process.
    """

    is_own: bool
    node_id: str

    def free_cpus(self) -> float:
        """Return how many CPUs no actor and no task has reserved."""
        return float(ray.available_resources().get("CPU", 0))

    def total_cpus(self) -> float:
        """Return how many CPUs the cluster has."""
        return float(ray.cluster_resources().get("CPU", 0))

    def largest_node_cpus(self) -> float:
        """Return how many CPUs the largest node has."""
        return float(max((node["Resources"].get("CPU", 0) for node in self.nodes()), default=0))

    def object_store_bytes(self) -> int:
        """Return the capacity of the object store of this process's node, in bytes."""
        (own,) = (node for node in self.nodes() if node["NodeID"] == self.node_id)
        return int(own["Resources"].get("object_store_memory", 0))

    def nodes(self) -> list[dict[str, Any]]:
        """Return Ray's description of each node that is alive."""
        return [node for node in ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Shut down Ray if this process started it and no other engine uses it. Idempotent."""
        global _users_of_own_ray  # noqa: PLW0603
        with _lock:
            if self.is_own:
                self.is_own = False
                _users_of_own_ray -= 1
                if not _users_of_own_ray and ray.is_initialized():
                    ray.shutdown()


def connect(address: str) -> Cluster:
    """Connect to a Ray cluster, or start Ray on this machine if "auto" finds no cluster.

    Args:
        address: A value of `loader.ray.address`.

    Raises:
        EngineError: There is no cluster at the address.
    """
    with _lock:
        is_own = _connect(address)
    return Cluster(is_own, ray.get_runtime_context().get_node_id())


def _connect(address: str) -> bool:
    """Connect; return whether this process has started the Ray. Call it while holding `_lock`."""
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
        "ends with the loader. Set loader.ray.address to use a cluster. Ray's line about tokens "
        "needs no action",
        cores(),
    )
    with _only_loopback():
        _init(address="local", num_cpus=cores(), include_dashboard=False)
    _users_of_own_ray = 1
    return True


def _is_listening(address: str) -> bool:
    """Return whether anything listens at HOST:PORT; True for an address of another format.

    Ray stores the address of this machine's newest cluster in a file. The file remains after the
    cluster is killed, and Ray would then try the dead address for four minutes.
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
    """Make a Ray that starts in this context bind its ports to 127.0.0.1.

    By default, Ray does so on macOS and Windows only. Elsewhere it listens on all networks, and
    replaces a `_node_ip_address` of 127.0.0.1 by the address of this machine. Ray's daemons and
    workers read RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER when they start. This process read it when it
    imported ray, so this function also changes the constant in which Ray keeps the value.
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
    """Return how many workers this trainer starts with.

    "auto" means as many as fit on the free CPUs, but at most as many as fit on this rank's equal
    share of all CPUs, and at least one.
    """
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
    """Return the message that says that the cluster cannot place some of the workers.

    Args:
        cluster: The cluster.
        options: The settings `loader.ray`.
        wanted: The target number of workers.
        missing: How many of them Ray has not placed yet.
        gave_up: Whether the trainer gave up; otherwise it still waits.
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
    """Ask Ray for an actor for up to `depth` tasks at once; return its handle without waiting."""
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
        # Each task waits on its own thread, and tasks of an ended iteration may still wait.
        "max_concurrency": 2 * depth + 4,
        "max_restarts": 0,
        "max_task_retries": 0,
    }
    return ray.remote(WorkerActor).options(**settings).remote()


def end_actors(actors: list[Any]) -> None:
    """Close the engines of all actors, wait up to 10 seconds, and then kill the actors.

    Engines are closed first, because they may have child processes.
    """
    closing = [actor.close.remote() for actor in actors]
    if closing:
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
    for actor in actors:
        ray.kill(actor)
