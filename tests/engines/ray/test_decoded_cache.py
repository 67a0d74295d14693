"""The decoded cache on a Ray cluster: the workers of a node share one."""

from __future__ import annotations

from pathlib import Path

from helpers.decoded_caches import MEMORY, are_equal, counters, epochs_of
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # a fixture
from helpers.loaders import load
from helpers.ray_batches import FLOATS, OPTIONS, ray_options
from helpers.ray_cluster import start_cluster


def test_workers_of_a_node_share_it_and_batches_are_the_same(faces: Path) -> None:
    plain = epochs_of(load(faces, FLOATS, engine="cpu", **OPTIONS), 2)
    cached = {"cache_decoded": MEMORY}
    # Its processes inherit where the test's cache is, so it starts here.
    with start_cluster(1, cpus=2):
        assert are_equal(epochs_of(load(faces, FLOATS, data=cached, **ray_options(2)), 2), plain)
        assert counters().records == 60
    again = epochs_of(load(faces, FLOATS, data=cached, engine="cpu", **OPTIONS), 2)
    assert are_equal(again, plain)
    assert counters().records == 60
