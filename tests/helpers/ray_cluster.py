"""A Ray cluster of several nodes on this machine, and the check that a test left nothing in it.

Its workers are forks of a Python that has imported torch: to import it takes each 3 seconds of CPU
time. tests/engines/ray/test_cluster.py starts workers as Ray does.
"""

import atexit
import functools
import gc
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import ray
from ray._raylet import Config
from ray.cluster_utils import Cluster

from gpupipe.engines.ray.status import read_object_store
from helpers import forked_python

STORE = 200 * 1024 * 1024
_PATIENCE = 60.0
_SYSTEM = {
    # Ray then knows after seconds, not after a quarter of a minute, that a node is gone.
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
    # Else all other processes of the machine go first.
    "worker_niceness": 0,
}


class RayCluster:
    """Nodes of one CPU each; this process is connected to the first.

    Attributes:
        cluster: Ray's own object.
        nodes: The nodes that were added, without the first.
    """

    def __init__(self, nodes: int) -> None:
        head = {
            "num_cpus": 1,
            "object_store_memory": STORE,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,  # of an autoscaler
            "_system_config": _SYSTEM,
        }
        _enable_token_auth()
        with _forked_workers():
            self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []
        for _ in range(nodes - 1):
            self.add_node()
        self.connect()
        self.cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        """The address of the cluster."""
        return str(self.cluster.address)

    def connect(self) -> None:
        """Connect this process."""
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    @contextmanager
    def disconnected(self) -> Iterator[None]:
        """Disconnect this process for a `with` block."""
        ray.shutdown()
        try:
            yield
        finally:
            ray.shutdown()
            self.connect()

    def add_node(self, cpus: int = 1) -> Any:
        """Add a node, and return Ray's object of it."""
        with _forked_workers():
            node = self.cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
        self.nodes.append(node)
        return node

    def remove_node(self, node: Any) -> None:
        """Kill the processes of a node."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """Disconnect, and end all nodes."""
        ray.shutdown()
        self.cluster.shutdown()


def _enable_token_auth() -> None:
    """Let the cluster ask for a token, as the Rays do that `ray.init(address="local")` starts.

    It does so for the rest of its process: a node that is started later must fit this cluster.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    Config.initialize("")  # Ray has read the variables when it was imported


@contextmanager
def _forked_workers() -> Iterator[None]:
    """Nodes that start in a `with` block fork their workers."""
    with mock.patch.object(sys, "executable", forked_python.executable()):
        yield


@functools.cache
def shared_cluster() -> RayCluster:
    """The cluster of all tests of this process: three nodes, which end with the process."""
    cluster = RayCluster(3)
    atexit.register(cluster.close)
    return cluster


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """The cluster of all tests. After the test nothing is left in it."""
    yield shared_cluster()
    assert_nothing_left()


@contextmanager
def start_cluster(nodes: int) -> Iterator[RayCluster]:
    """Start a cluster for a `with` block."""
    cluster = RayCluster(nodes)
    try:
        yield cluster
    finally:
        cluster.close()


def wait_until(is_true: Any, what: str) -> None:
    """Wait until a condition holds; fail after a minute."""
    deadline = time.monotonic() + _PATIENCE
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def list_actors() -> list[str]:
    """Return the actors that are alive. Those that Ray's libraries detach are not ours."""
    from ray._private.state import actors

    return [
        f"{actor['ActorClassName']} {actor['State']}"
        for actor in actors().values()
        if actor["State"] != "DEAD" and not actor["IsDetached"]
    ]


def free_cpus() -> float:
    """Return how many CPUs of the cluster are free."""
    return float(ray.available_resources().get("CPU", 0))


def total_cpus() -> float:
    """Return how many CPUs the cluster has."""
    return float(ray.cluster_resources().get("CPU", 0))


def assert_nothing_left() -> None:
    """Fail unless all actors and their resources are gone."""
    wait_until(lambda: not list_actors(), f"actors are left: {list_actors()}")
    # A node that was removed counts for some seconds more.
    wait_until(lambda: free_cpus() == total_cpus(), "CPUs are held")
    wait_until(lambda: not count_references(), f"{count_references()} objects are left")
    assert read_object_store().spilled == 0


def count_references() -> int:
    """Return how many objects this process refers to."""
    gc.collect()
    return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())
