"""What the workers of a trainer share: the job, its hash, and how many they are."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.engines.base import Job
from gpupipe.engines.ray.cluster import Cluster
from gpupipe.engines.ray.sharing import count_workers, list_visible_paths, share_job, split_job
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
    assert [entry.key for entry in tail.at_epoch(0)] == left
    assert keys_of(theirs) + left == keys_of(job)
    assert theirs.loader.dtype == (None if left else "float16")
    assert tail.dtype == ("float16" if left else None)
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


def test_the_key_of_a_job_depends_on_samples_steps_and_settings(
    cluster: RayCluster, faces: Path
) -> None:
    job = job_of(faces)
    key = share_job(job).key
    assert share_job(job_of(faces)).key == key
    shorter = replace(job, pipeline=job.pipeline.without_entries((3,)))
    assert len({key, share_job(shorter).key, share_job(job_of(faces, seed=8)).key}) == 3


class Room(Cluster):
    """A cluster of 12 CPUs, 7 of which are free."""

    def __init__(self) -> None:
        super().__init__(False, "")

    def total_cpus(self) -> float:
        return 12.0

    def free_cpus(self) -> float:
        return 7.0


@pytest.mark.parametrize(
    ("workers", "cpus", "world_size", "count"),
    [(5, 2, 1, 5), ((2, 6), 2, 1, 2), ("auto", 2, 1, 3), ("auto", 2, 3, 2), ("auto", 8, 1, 1)],
)
def test_auto_takes_this_ranks_share_of_the_cpus_that_are_free(
    faces: Path, workers: Any, cpus: int, world_size: int, count: int
) -> None:
    shard = {"rank": 0, "world_size": world_size}
    options = job_of(faces, ray={"workers": workers, "cpus": cpus}, shard=shard).loader
    assert count_workers(options, Room()) == count
