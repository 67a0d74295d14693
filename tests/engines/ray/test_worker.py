"""The worker's side without Ray: BatchMaker, and the answers of TaskRunner."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

import gpupipe
from gpupipe.engines.ray.arrays import unpack
from gpupipe.engines.ray.messages import PlanTask
from gpupipe.engines.ray.sharing import split_job
from gpupipe.engines.ray.worker import BatchMaker, TaskRunner
from gpupipe.errors import EngineError, SampleError
from helpers.batch_makers import broken, maker, plan


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
        assert ours.engine.traits.parallelism == (0 if cpus == 1 else cpus)
        made = ours.make(plan(3, 1, 2))
    assert made["id"].tolist() == [3, 1, 2]
    assert np.abs(made["image"].astype(int) - expected["image"]).max() <= 1


def test_a_worker_has_no_files_that_it_would_leave_when_it_is_killed(
    tmp_path: Path, faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = broken(tmp_path, faces)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with maker(root, on_error="skip", max_bad=0.5) as (ours, job):
        assert len(ours.make(plan(*range(len(job.index))))["id"]) == len(job.index) - 1
        assert not list((tmp_path / "tmp").iterdir())


def test_skipped_samples_are_left_out_with_their_reason(tmp_path: Path, faces: Path) -> None:
    with maker(broken(tmp_path, faces), on_error="skip") as (ours, _):
        for ids, left in (((1, 2, 3), [1, 3]), ((2, 4), [4]), ((2,), [])):
            made = ours.submit(plan(*ids)).result()
            assert made is not None and made.plan.ids.tolist() == left
        assert list(ours.engine.skipped_samples) == [2]
        assert "cut off" in ours.engine.skipped_samples[2]


def task(*ids: int, key: str = "job", run: int = 0) -> PlanTask:
    return PlanTask(key, run, 0, 0, np.array(ids, np.int64), False)


def test_an_answer_has_the_fields_of_the_pipeline(faces: Path) -> None:
    with maker(faces) as (ours, _):
        answer = TaskRunner("job", ours).make(task(5, 2))
        expected = ours.make(plan(5, 2))
    assert answer is not None and answer.kept is None and answer.error is None
    assert list(answer.fields) == ["image"], "the trainer knows labels and ids"
    assert np.array_equal(unpack(answer.fields["image"]).numpy(), expected["image"])


def test_an_answer_says_which_samples_were_skipped_and_why(tmp_path: Path, faces: Path) -> None:
    with maker(broken(tmp_path, faces), on_error="skip") as (ours, _):
        runner = TaskRunner("job", ours)
        some, none = runner.make(task(4, 2, 1)), runner.make(task(2))
    assert some is not None and some.kept is not None and some.kept.tolist() == [0, 2]
    assert len(unpack(some.fields["image"])) == 2
    assert list(some.skipped) == [2] and "cut off" in some.skipped[2]
    assert none is not None and none.kept is not None and not len(none.kept)
    assert none.fields == {}


def test_an_error_is_an_answer(tmp_path: Path, faces: Path) -> None:
    with maker(broken(tmp_path, faces)) as (ours, _):
        runner = TaskRunner("job", ours)
        failed, other = runner.make(task(2)), runner.make(task(1, key="another"))
    assert failed is not None and isinstance(failed.error, SampleError)
    assert other is not None and isinstance(other.error, EngineError)
    assert "another" in str(other.error)


def test_a_task_of_an_ended_iteration_has_no_answer(faces: Path) -> None:
    with maker(faces) as (ours, _):
        runner = TaskRunner("job", ours)
        runner.discard_before(1)
        assert runner.make(task(0)) is None
        assert runner.make(task(0, run=1)) is not None
