"""A Ray that the engine starts where none runs, and how many workers a cluster has room for."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import utils

from gpupipe.config import LoaderConfig, RayConfig
from gpupipe.engines.ray.cluster import Cluster, count_workers, explain_no_room
from gpupipe.errors import EngineError
from helpers.loaders import load
from helpers.ray_batches import PIPELINE, assert_same, batches, local_batches, ray_options
from helpers.ray_cluster import RayCluster, wait_until


@pytest.fixture
def _no_cluster(nodes: RayCluster) -> Iterator[None]:
    """This process is connected to no Ray."""
    with nodes.disconnected():
        yield


@pytest.mark.usefixtures("_no_cluster")
def test_a_ray_of_its_own_listens_on_loopback_and_ends_with_the_loader(
    faces: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is a new Python, as a user's are."""
    monkeypatch.setattr(utils, "read_ray_address", lambda _: "127.0.0.1:1")  # a Ray that was killed
    with load(faces, PIPELINE, **ray_options(1)) as loader:
        assert "a Ray with" in caplog.text and "was started on this machine" in caplog.text
        host, port = ray.get_runtime_context().gcs_address.split(":")
        assert host == "127.0.0.1"
        address = find_own_address()
        if address != host:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, int(port)))
        assert_same(batches(loader), local_batches(faces, PIPELINE))
    assert not ray.is_initialized()
    wait_until(lambda: not is_answered(int(port)), "Ray's head process is left")


@pytest.mark.usefixtures("_no_cluster")
@pytest.mark.parametrize("name", ["loader.ray.address", "RAY_ADDRESS"])
def test_no_cluster_at_the_address(faces: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    address = "127.0.0.1:1"
    if name == "RAY_ADDRESS":
        monkeypatch.setenv(name, address)
    options = ray_options(1) if name == "RAY_ADDRESS" else ray_options(1, address=address)
    with pytest.raises(EngineError, match=rf"{name}: no Ray cluster answers at {address}"):
        load(faces, PIPELINE, **options)


def find_own_address() -> str:
    """The address of this machine in its network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def is_answered(port: int) -> bool:
    """Whether anything listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


class Room(Cluster):
    """A cluster of 12 CPUs, 7 of which are free."""

    def __init__(self) -> None:
        super().__init__(False, "")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Resources": {"CPU": cpus}} for cpus in (8.0, 4.0)]

    def total_cpus(self) -> float:
        return 12.0

    def free_cpus(self) -> float:
        return 7.0


@pytest.mark.parametrize(
    ("workers", "cpus", "world_size", "count"),
    [(5, 2, 1, 5), ((2, 6), 2, 1, 2), ("auto", 2, 1, 3), ("auto", 2, 3, 2), ("auto", 8, 1, 1)],
)
def test_auto_takes_this_ranks_share_of_the_cpus_that_are_free(
    workers: Any, cpus: int, world_size: int, count: int
) -> None:
    options = LoaderConfig.model_validate(
        {
            "ray": {"workers": workers, "cpus": cpus},
            "shard": {"rank": 0, "world_size": world_size},
        }
    )
    assert count_workers(options, Room()) == count


def test_what_the_trainer_waits_for_is_said_with_numbers() -> None:
    options = RayConfig(workers=3, cpus=2, wait=5)
    waits = explain_no_room(Room(), options, 3, 1, gave_up=False)
    assert "1 of 3 workers, each with 2 CPUs" in waits
    assert "7 of the 12 CPUs on 2 nodes are free" in waits and "5 seconds" in waits
    assert "largest node has 8" in waits
    gave_up = explain_no_room(Room(), options, 3, 1, gave_up=True)
    assert "gave up after 5 seconds" in gave_up and "loader.ray.workers" in gave_up
