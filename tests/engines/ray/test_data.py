"""Where workers find the data: a remote store through a cache of their node, and a path that only
the trainer sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loaders import load
from ray_batches import FLOATS, assert_same, batches, local_batches, ray_options
from ray_cluster import RayCluster

import gpupipe
from gpupipe.errors import EngineError

FIRST_FREE = 900


@pytest.fixture
def seen_here_alone(faces: Path) -> Iterator[str]:
    """A path to a folder that is open in this process, and in no other."""
    folder, number = os.open(faces, os.O_RDONLY), FIRST_FREE
    os.dup2(folder, number, inheritable=False)
    yield f"/proc/self/fd/{number}"
    os.close(number)
    os.close(folder)


def test_a_node_that_does_not_see_the_data_is_named(
    cluster: RayCluster, seen_here_alone: str
) -> None:
    with pytest.raises(EngineError) as error:
        load(Path(seen_here_alone), FLOATS, **ray_options(1))
    text = str(error.value)
    assert seen_here_alone in text and "does not see" in text and "source: remote" in text
    assert any(node["NodeManagerAddress"] in text for node in nodes_of(cluster)), text


def nodes_of(cluster: RayCluster) -> list[Any]:
    import ray

    return list(ray.nodes())


def test_a_remote_store_is_read_through_a_cache_of_each_node(
    cluster: RayCluster, faces: Path, tmp_path: Path
) -> None:
    pytest.importorskip("diskcache", reason="needs gpupipe[remote]")
    cache = {"dir": str(tmp_path / "cache"), "max_bytes": "1GB"}
    config = {
        "data": {"source": "remote", "url": f"file://{faces}", "cache": cache},
        "pipeline": FLOATS,
        "loader": {"device": "cpu", "ids": True},
    }
    with gpupipe.load(config, **ray_options(2)) as loader:
        epochs = [batches(loader) for _ in range(2)]
    for number, epoch in enumerate(epochs):
        assert_same(epoch, local_batches(faces, FLOATS, epoch=number))
    kept = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert kept >= sum(file.stat().st_size for file in faces.rglob("*.jpg"))
