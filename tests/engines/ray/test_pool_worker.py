"""The job that workers share, and an actor from its start to its end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from gpupipe import config as configs
from gpupipe.config import RayConfig
from gpupipe.engines.base import Job
from gpupipe.engines.ray.actor import list_versions
from gpupipe.engines.ray.cluster import connect
from gpupipe.engines.ray.messages import unpack
from gpupipe.engines.ray.pool_worker import (
    PoolWorker,
    create_actor,
    end_actors,
    list_visible_paths,
    share_job,
    split_job,
)
from helpers.batch_makers import make_batch, maker, plan
from helpers.ray_batches import FLOATS
from helpers.ray_cluster import RayCluster


def job_of(root: Path, **options: Any) -> Job:
    config = configs.read(
        {"data": {"source": "folder", "root": root}, "pipeline": FLOATS}, device="cpu", **options
    )
    return Job(config.source.index(), config.pipeline, config.loader, 1)


def keys_of(job: Job) -> list[str]:
    return [entry.key for entry in job.pipeline.entries]


@pytest.mark.parametrize(("ship", "left"), [("uint8", ["to_dtype"]), ("batch", [])])
def test_the_last_steps_on_uint8_are_left_to_the_trainer(
    faces: Path, ship: str, left: list[str]
) -> None:
    job = job_of(faces, dtype="float16", ray={"ship": ship, "cpus": 3})
    theirs, tail = split_job(job)
    assert keys_of(tail) == left
    assert keys_of(theirs) + left == keys_of(job)
    assert theirs.loader.dtype == (None if left else "float16")
    assert tail.loader.dtype == ("float16" if left else None)
    assert theirs.threads == theirs.loader.threads == 3


def test_a_dataloader_in_a_worker_does_not_fork_it(faces: Path) -> None:
    for context, theirs in ((None, "forkserver"), ("fork", "forkserver"), ("spawn", "spawn")):
        job = job_of(faces, engine="dataloader", multiprocessing_context=context, workers=2)
        assert split_job(job)[0].loader.multiprocessing_context == theirs


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
        shared = share_job(job)
        actor = create_actor(trainer, RayConfig(cpus=1, placement="local_first"), shared)
        facts = ray.get(actor.describe.remote())
        assert facts.node_id == trainer.node_id, "its node is the trainer's"
        assert facts.pid != os.getpid()
        assert facts.versions == list_versions()
        assert ray.get(actor.build.remote([shared.ref], "cpu", "cpu", shared.paths)) is None
        _, answer = PoolWorker(actor, facts).send(0, 0, plan(3, 1))
        fields = answer.result(60).fields
        assert torch.equal(unpack(fields["image"]), make_batch(ours, plan(3, 1))["image"])
    del answer, fields, shared
    end_actors([actor])
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.describe.remote())
    trainer.close()
