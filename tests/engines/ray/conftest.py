"""A cluster for all tests, and the check after each test."""

from collections.abc import Iterator

import pytest

from helpers.ray_cluster import RayCluster, assert_nothing_left, shared_cluster


@pytest.fixture(scope="session")
def nodes() -> RayCluster:
    """Three nodes of one CPU each."""
    return shared_cluster()


@pytest.fixture
def cluster(nodes: RayCluster) -> Iterator[RayCluster]:
    """The cluster of all tests. After the test nothing is left in it."""
    yield nodes
    assert_nothing_left()
