"""What fits into a cluster: workers on its CPUs, and batches in the object store of a node."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gpupipe.config import LoaderConfig, RayConfig
from gpupipe.engines.ray.capacity import Demand, choose_window, count_workers, explain_no_room
from gpupipe.engines.ray.cluster import Cluster
from gpupipe.errors import EngineError

SMALL = Demand(batch_bytes=10_000_000, finished=2, trainers=1, store_bytes=200_000_000)


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


def test_a_window_that_fits_is_taken() -> None:
    assert SMALL.largest_window == 12
    assert choose_window(SMALL, 12, True) == 12


def test_a_default_window_shrinks_to_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert choose_window(SMALL, 13, False) == 12
    assert "200 MB" in caplog.text and "10.0 MB" in caplog.text


def test_an_explicit_window_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(EngineError, match=r"17 batches of 10\.0 MB need 170 MB, and 80% of 200 MB"):
        choose_window(SMALL, 13, True)


def test_trainers_of_a_node_share_its_store() -> None:
    two = Demand(batch_bytes=10_000_000, finished=2, trainers=2, store_bytes=200_000_000)
    assert two.largest_window == 4
    large = Demand(batch_bytes=40_000_000, finished=2, trainers=1, store_bytes=200_000_000)
    with pytest.raises(EngineError, match="--object-store-memory"):
        choose_window(large, 10, False)
