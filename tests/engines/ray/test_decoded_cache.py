"""The decoded cache on a Ray cluster: the workers of a node share one."""

from pathlib import Path

from helpers.decoded_caches import MEMORY, are_equal, counters, epochs_of
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # a fixture
from helpers.loaders import load
from helpers.ray_batches import FLOATS, OPTIONS, ray_options
from helpers.ray_cluster import RayCluster


def test_workers_of_a_node_share_it_and_batches_are_the_same(
    cluster: RayCluster, faces: Path
) -> None:
    plain = epochs_of(load(faces, FLOATS, engine="cpu", **OPTIONS), 2)
    cached = {"cache_decoded": MEMORY}
    # The only node with room for the workers. Its processes inherit where the test's cache is.
    node = cluster.add_node(cpus=4)
    loader = load(faces, FLOATS, data=cached, **ray_options(2, cpus=2))
    assert are_equal(epochs_of(loader, 2), plain)
    assert counters().records == 60
    cluster.remove_node(node)
    again = epochs_of(load(faces, FLOATS, data=cached, engine="cpu", **OPTIONS), 2)
    assert are_equal(again, plain)
    assert counters().records == 60
