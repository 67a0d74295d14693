"""The worker's side without Ray: BatchMaker and its stream of plans."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.engines.base import LoadSpec
from gpupipe.engines.ray.sharing import split_job
from gpupipe.engines.ray.worker import BatchMaker
from gpupipe.errors import SampleError
from gpupipe.sampling.sampler import Plan


@contextmanager
def maker(root: Path, **options: Any) -> Iterator[tuple[BatchMaker, LoadSpec]]:
    data = {"source": "folder", "root": root}
    config = configs.read({"data": data, "pipeline": ["decode"]}, device="cpu", **options)
    job = LoadSpec(config.source.index(), config.pipeline, config.loader, 1)
    with BatchMaker(job, "cpu") as batch_maker:
        yield batch_maker, job


def plan(*ids: int) -> Plan:
    return Plan(0, np.array(ids, np.int64), 0, False)


def test_makes_the_batches_of_a_loader(faces: Path) -> None:
    with gpupipe.load(
        {"data": {"source": "folder", "root": faces}, "pipeline": ["decode"]},
        engine="cpu", device="cpu", batch_size=8, ids=True,
    ) as loader:  # fmt: skip
        expected = next(iter(loader))
    with maker(faces, batch_size=8) as (ours, _):
        made = ours.make(plan(*expected["id"].tolist()))
    assert made.keys() == expected.keys()
    for name, array in made.items():
        assert np.array_equal(array, expected[name].numpy())


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_dataloader_inside_a_worker(faces: Path, cpus: int) -> None:
    with maker(faces, ray={"cpus": cpus}) as (ours, job):
        expected = ours.make(plan(3, 1, 2))
    with BatchMaker(split_job(job)[0], "dataloader") as ours:
        assert ours.engine.parallelism == (0 if cpus == 1 else cpus)
        made = ours.make(plan(3, 1, 2))
    assert made["id"].tolist() == [3, 1, 2]
    assert np.abs(made["image"].astype(int) - expected["image"]).max() <= 1


def test_many_plans_at_once_are_answered_in_any_order_that_they_come(faces: Path) -> None:
    with maker(faces) as (ours, _):
        results = [ours.submit(plan(n, n + 1), (0, n)) for n in range(20)]
        for n, result in enumerate(results):
            made = result.result()
            assert made is not None and made.plan.ids.tolist() == [n, n + 1]


def test_a_worker_has_no_files_that_it_would_leave_when_it_is_killed(
    tmp_path: Path, faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = broken(tmp_path, faces)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with maker(root, on_error="skip", max_bad=0.5) as (ours, job):
        assert len(ours.make(plan(*range(len(job.index))))["id"]) == len(job.index) - 1
        assert not list((tmp_path / "tmp").iterdir())


def test_a_sample_that_fails_costs_only_its_own_plan(tmp_path: Path, faces: Path) -> None:
    root = broken(tmp_path, faces)
    with maker(root) as (ours, job):
        results = [ours.submit(plan(n), (0, n)) for n in range(6)]
        for n, result in enumerate(results):
            if n == 2:
                with pytest.raises(SampleError) as error:
                    result.result()
                assert error.value.path == job.index.location(2)
            else:
                made = result.result()
                assert made is not None and made.batch is not None


def test_skipped_samples_are_left_out_with_their_reason(tmp_path: Path, faces: Path) -> None:
    with maker(broken(tmp_path, faces), on_error="skip") as (ours, _):
        for ids, left in (((1, 2, 3), [1, 3]), ((2, 4), [4]), ((2,), [])):
            made = ours.submit(plan(*ids)).result()
            assert made is not None and made.plan.ids.tolist() == left
        assert list(ours.engine.skipped_samples) == [2]
        assert "cut off" in ours.engine.skipped_samples[2]


def test_plans_of_an_ended_iteration_are_discarded(faces: Path) -> None:
    with maker(faces) as (ours, _):
        ours.discard_before(1)
        assert ours.submit(plan(0), (0, 0)).result() is None
        assert ours.submit(plan(0), (1, 0)).result() is not None


def broken(tmp_path: Path, faces: Path) -> Path:
    """A copy of the faces whose row 2 is cut off."""
    root = tmp_path / "faces"
    shutil.copytree(faces, root)
    file = sorted(root.rglob("*.jpg"))[2]
    file.write_bytes(file.read_bytes()[:1000])
    return root
