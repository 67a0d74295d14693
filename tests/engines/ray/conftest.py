"""A cluster for all tests of a module, and the check after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.ray_cluster import RayCluster, assert_nothing_left, start_cluster


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayCluster]:
    """Three nodes of one CPU each."""
    with start_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: RayCluster) -> Iterator[RayCluster]:
    """The cluster of the module. After the test nothing is left in it."""
    yield nodes
    assert_nothing_left()
