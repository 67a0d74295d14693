"""A cluster for all tests, and the check after each test."""

import pytest

from helpers.ray_cluster import RayCluster, shared_cluster
from helpers.ray_cluster import cluster as cluster  # noqa: PLC0414  # a fixture


@pytest.fixture(scope="session")
def nodes() -> RayCluster:
    """Three nodes of one CPU each."""
    return shared_cluster()
