"""Where workers find the data: a remote store through a cache of their node, and a path that only
the trainer sees.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gpupipe
from gpupipe.errors import EngineError
from helpers.loaders import load
from helpers.ray_batches import FLOATS, assert_same, batches, local_batches, ray_options
from helpers.ray_cluster import STORE, RayCluster, total_cpus, wait_until

HIDE_AND_RUN = 'mount -t tmpfs none "$0" && exec "$@"'
"""A shell's script, in a mount namespace: an empty folder lies over the first argument."""


@contextmanager
def node_that_does_not_see(folder: Path, cluster: RayCluster) -> Iterator[None]:
    """Add a node of two CPUs, for whose processes the folder is empty."""
    ray = Path(sys.executable).with_name("ray")
    start = f"{ray} start --address={cluster.address} --num-cpus=2 --object-store-memory={STORE}"
    command = ["unshare", "-m", "sh", "-c", HIDE_AND_RUN, str(folder), *start.split(), "--block"]
    cpus = total_cpus()
    # Its actor holds it for good: else Ray would wait half a minute for the actor to end.
    environment = os.environ | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    node = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    try:
        wait_until(lambda: total_cpus() == cpus + 2, "the node does not come")
        yield
    finally:
        node.terminate()
        node.wait(60)


def can_mount() -> bool:
    """Whether this process may change what other processes see."""
    command = ["unshare", "-m", "sh", "-c", HIDE_AND_RUN, "/mnt", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="mount namespaces need more rights")
def test_a_node_that_does_not_see_the_data_is_named(cluster: RayCluster, faces: Path) -> None:
    with (
        node_that_does_not_see(faces, cluster),
        pytest.raises(EngineError, match="source: remote") as error,
    ):
        load(faces, FLOATS, **ray_options(1, cpus=2))  # no other node has room
    assert f"does not see {faces}/" in str(error.value)


def test_a_remote_store_is_read_through_a_cache_of_each_node(
    cluster: RayCluster, faces: Path, tmp_path: Path
) -> None:
    pytest.importorskip("diskcache", reason="needs the extra remote")
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
