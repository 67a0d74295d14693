"""The workers of a trainer: what they need of the cluster and of their nodes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch

from gpupipe.config import RayConfig
from gpupipe.engines.ray import pool
from gpupipe.engines.ray.actor import list_versions
from gpupipe.engines.ray.cluster import connect, create_actor, end_actors
from gpupipe.engines.ray.pool import PoolWorker, RayWorkerPool, list_visible_paths
from gpupipe.engines.ray.worker import unpack
from gpupipe.errors import EngineError
from helpers.batch_makers import make_batch, maker, plan
from helpers.loaders import load
from helpers.ray_batches import FLOATS, PIPELINE, job_of, ray_options
from helpers.ray_cluster import STORE, RayCluster, total_cpus, wait_until

HIDE_AND_RUN = 'mount -t tmpfs none "$0" && exec "$@"'
"""A shell's script, in a mount namespace: an empty folder lies over the first argument."""


@contextmanager
def node_that_does_not_see(folder: Path, cluster: RayCluster) -> Iterator[None]:
    """Add a node of two CPUs, for whose processes the folder is empty."""
    program = Path(sys.executable).with_name("ray")
    start = (
        f"{program} start --address={cluster.address} --num-cpus=2 --object-store-memory={STORE}"
    )
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


def test_what_cannot_work_is_refused_at_the_start(cluster: RayCluster, faces: Path) -> None:
    with pytest.raises(EngineError, match=r"of 4 workers.*gave up after 2 seconds.*ray\.wait"):
        load(faces, PIPELINE, **ray_options(4, wait=2))
    with pytest.raises(EngineError, match=r"each with 2 CPUs.*largest node has 1"):
        load(faces, PIPELINE, **ray_options(1, cpus=2, wait=1))
    with pytest.raises(EngineError, match=r"10\.0\.0\.1:6379"):
        load(faces, PIPELINE, **ray_options(1, address="10.0.0.1:6379"))
    with pytest.raises(EngineError, match=r"object store .* too small"):
        load(faces, FLOATS, hwm=1000, **{**ray_options(1), "batch_size": 60})


def test_a_path_that_this_process_does_not_see_either_is_not_asked_for(
    faces: Path, tmp_path: Path
) -> None:
    paths = list_visible_paths(job_of(faces).index)
    assert str(faces) in [path.rstrip("/") for path in paths]
    assert any(Path(path).is_file() for path in paths)
    shutil.copytree(faces, tmp_path / "copy")
    index = job_of(tmp_path / "copy").index
    shutil.rmtree(tmp_path / "copy")
    assert list_visible_paths(index) == ()


def test_it_describes_itself_builds_its_engine_answers_and_ends(
    cluster: RayCluster, faces: Path
) -> None:
    trainer = connect("auto")
    with maker(faces) as (ours, job):
        actor = create_actor(trainer, RayConfig(cpus=1, placement="local_first"), 4)
        facts = ray.get(actor.describe.remote())
        assert facts.node_id == trainer.node_id, "its node is the trainer's"
        assert facts.pid != os.getpid()
        assert facts.versions == list_versions()
        assert ray.get(actor.build.remote([ray.put(job)], "cpu", "cpu", ("/",))) is None
        _, answer = PoolWorker(actor, facts).send(0, 0, plan(3, 1))
        fields = answer.result(60).fields
        assert torch.equal(unpack(fields["image"]), make_batch(ours, plan(3, 1))["image"])
    del answer, fields
    end_actors([actor])
    with pytest.raises(ray.exceptions.RayActorError):
        while True:  # Ray ends it some time after it was asked to
            ray.get(actor.describe.remote())
    trainer.close()


def test_workers_that_end_before_they_are_ready_are_an_error_of_each_later_poll(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = SimpleNamespace(describe=SimpleNamespace(remote=object))

    def fail(ref: object) -> None:
        raise ray.exceptions.RayActorError(error_msg="no memory")

    fake_ray = SimpleNamespace(
        exceptions=ray.exceptions, put=id, wait=lambda refs, timeout: (refs[:1], refs[1:]), get=fail
    )
    monkeypatch.setattr(pool, "ray", fake_ray)
    monkeypatch.setattr(pool, "create_actor", lambda *arguments: actor)
    workers = RayWorkerPool(SimpleNamespace(), job_of(faces), 1)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^5 Ray workers in a row .* no memory"):
            workers.start()
