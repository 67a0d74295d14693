"""Boxes of several batches that are moved at once are to the bit those of each batch alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.annotations import plan_annotator
from gpupipe.annotations.batch_annotations import BatchAnnotations
from gpupipe.annotations.rows import AnnotationRows
from gpupipe.dataset.spec import Spec
from gpupipe.engines.base import Job
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import Params, Step
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import Selection
from helpers.annotated_folder import assert_equal, by_sample, configure, load
from helpers.small_images import shrink_all

STEPS: list[Any] = [
    "decode",
    {"random_zoom_out": {"side_range": [1.0, 2.0]}},
    "random_iou_crop",
    "random_horizontal_flip",
    {"resize": {"size": [32, 44]}},
    "sanitize_bounding_boxes",
]
ELASTIC: list[Any] = ["decode", {"resize": {"size": [32, 44]}}, "elastic_transform"]


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("siblings") / "faces", 56)


@pytest.fixture(scope="module")
def alone(root: Path) -> dict[int, dict[str, Any]]:
    """Every sample of epoch 0, in batches of one."""
    with load(root, STEPS, engine="cpu", batch_size=1, threads=1) as loader:
        return by_sample(loader)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of samples of each call that moves annotations."""
    counts: list[int] = []
    annotate = AnnotationRows.annotate

    def count(rows: AnnotationRows, pipeline: Any, steps: Any, sizes: Any, turned: Any) -> Any:
        counts.append(len(sizes["image"]))
        return annotate(rows, pipeline, steps, sizes, turned)

    monkeypatch.setattr(AnnotationRows, "annotate", count)
    return counts


def job_of(root: Path, steps: list[Any]) -> Job:
    config = configure(root, steps, seed=3)
    return Job(config.source.index(), config.pipeline, config.loader, 1)


def sizes_of(job: Job, plan: Plan) -> dict[str, Any]:
    return {"image": job.index.sizes["image"][plan.ids].astype(np.float64)}


def assert_same(one: BatchAnnotations, other: BatchAnnotations) -> None:
    for name, array in other.arrays().items():
        assert one.arrays()[name].dtype == array.dtype, name
        assert np.array_equal(one.arrays()[name], array), name
        assert one.arrays()[name].flags.c_contiguous
    for of_step, expected in zip(one.parameters["image"], other.parameters["image"], strict=True):
        assert of_step.keys() == expected.keys()
        for name, values in expected.items():
            assert np.array_equal(of_step[name], values), name


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_each_plan_gets_its_part(
    root: Path, batch_size: int, repeats: int, moved: list[int]
) -> None:
    job, options = job_of(root, STEPS), {"shuffle": True, "seed": 3, "last_batch": "partial"}
    sampler = Sampler(40, batch_size, selection=Selection(repeats=repeats), **options)  # type: ignore[arg-type]
    plans = list(sampler.begin())
    for plan in plans:
        plan_alone = replace(plan, siblings=None)
        expected = job.annotate(plan_alone, sizes_of(job, plan)).annotations
        at_once = job.annotate(plan, sizes_of(job, plan)).annotations
        assert_same(at_once, expected)
        again = job.annotate(plan, sizes_of(job, plan)).annotations  # as after a failed sample
        assert_same(again, expected)
    assert max(moved) == (16 if batch_size == 1 else 40)  # plans made at once, or all of an epoch


def test_a_limited_number_of_samples_is_moved_at_once(
    root: Path, moved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(root, STEPS)
    monkeypatch.setattr(plan_annotator, "_MAX_ROWS", 11)
    options = {"shuffle": True, "seed": 3, "last_batch": "partial"}
    plans = list(Sampler(18, 5, selection=Selection(repeats=2), **options).begin())  # type: ignore[arg-type]
    every = [job.annotate(plan, sizes_of(job, plan)).annotations for plan in plans]
    assert [count for count in moved if count > 1] == [10, 8]
    for plan, found in zip(plans, every, strict=True):
        alone = job.annotate(replace(plan, siblings=None), sizes_of(job, plan)).annotations
        assert_same(found, alone)


def test_batches_with_rotated_files_are_moved_alone(root: Path, moved: list[int]) -> None:
    job = job_of(root, [{"decode": {"apply_exif_orientation": True}}, *STEPS[1:]])
    for plan in Sampler(18, 6, shuffle=True, seed=3, last_batch="partial").begin():
        turned = {"image": np.where(plan.ids == 9, 6, 1)}
        plan_alone = replace(plan, siblings=None)
        found = job.annotate(plan, sizes_of(job, plan), turned).annotations
        assert_same(found, job.annotate(plan_alone, sizes_of(job, plan), turned).annotations)
    assert [count for count in moved if count > 1] == [18, 6, 6, 6, 6]


def test_slow_moves_are_made_batch_by_batch(root: Path, moved: list[int]) -> None:
    job = job_of(root, ELASTIC)
    sampler = Sampler(12, 5, shuffle=True, seed=3, last_batch="partial")
    moved.clear()
    for plan in sampler.begin():
        job.annotate(plan, sizes_of(job, plan))
    assert [count for count in moved if count > 1] == [5, 5, 2]


class PadToLargest(Step):
    """Pad each image on all sides to the largest of its batch."""

    def infer_spec(self, input_spec: Spec) -> Spec:
        return input_spec.with_size((None, None))

    def lower(self, image: Primitives, p: Params) -> None:
        room = image.size.max(0) - image.size
        image.pad(np.floor(room / 2), np.ceil(room / 2), "edge")


@pytest.mark.parametrize(
    "step", ["largest", {"random_apply": {"p": 1.0, "transforms": ["largest"]}}], ids=["", "nested"]
)
def test_a_step_of_another_package_sees_one_batch_alone(
    tmp_path: Path, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    for n, side in enumerate([20, 24, 40, 30]):
        Image.new("RGB", (side, side)).save(tmp_path / "a" / f"{n}.png")
    registry, find = step_registry.STEPS, step_registry.STEPS.find

    def find_step(name: str) -> Any:
        return PadToLargest if name == "largest" else find(name)

    monkeypatch.setattr(registry, "find", find_step)
    options: dict[str, Any] = {"engine": "cpu", "shuffle": False, "threads": 1}
    with load(tmp_path, ["decode", step], batch_size=2, **options) as loader:
        batches = list(loader)
    assert [batch["image"].shape[-1] for batch in batches] == [24, 40]
    shifts = [batch["to_original"][:, 0, 2].tolist() for batch in batches]
    assert shifts == [[-2.0, 0.0], [0.0, -5.0]]


@pytest.mark.parametrize("engine", ["cpu", "dali"])
@pytest.mark.parametrize("batch_size", [3, 32])
def test_an_epoch_and_a_resumed_one_are_those_of_batches_of_one(
    root: Path, alone: dict[int, dict[str, Any]], engine: str, batch_size: int
) -> None:
    with load(root, STEPS, engine=engine, batch_size=batch_size) as loader:
        iterator = iter(loader)
        first = next(iterator)["id"].tolist()
        state = json.loads(json.dumps(loader.state_dict()))
        rest = by_sample(iterator)  # type: ignore[arg-type]
    assert_equal(rest, {n: sample for n, sample in alone.items() if n not in first})
    with load(root, STEPS, engine=engine, batch_size=5) as loader:
        loader.load_state_dict(state)
        assert_equal(by_sample(loader), rest)


@pytest.mark.parametrize("engine", ["cpu", "dali"])
@pytest.mark.parametrize("damage", ["unreadable", "other size"])
def test_siblings_of_a_broken_sample_get_what_they_get_without_it(
    root: Path, alone: dict[int, dict[str, Any]], engine: str, damage: str, tmp_path: Path
) -> None:
    copy = shrink_all(root, tmp_path / "faces", 56)
    options: dict[str, Any] = {"on_error": "skip", "max_bad": 0.5, "quarantine": tmp_path / "bad"}
    with load(copy, STEPS, engine=engine, batch_size=4, **options) as loader:
        path = Path(loader.index.location(9))
        if damage == "unreadable":
            path.write_bytes(b"no image")
        else:
            Image.new("RGB", (31, 47)).save(path)
        found = by_sample(loader)
    assert_equal(found, {n: sample for n, sample in alone.items() if n != 9})
    (record,) = [json.loads(line) for line in (tmp_path / "bad").read_text().splitlines()]
    reason = "no image|not an image|cannot|format" if damage == "unreadable" else "31x47"
    assert record["path"] == str(path)
    assert any(part in record["reason"] for part in reason.split("|")), record


def test_a_broken_sample_raises_with_its_path(root: Path, tmp_path: Path) -> None:
    copy = shrink_all(root, tmp_path / "faces", 56)
    with load(copy, STEPS, engine="cpu", batch_size=4) as loader:
        path = Path(loader.index.location(9))
        Image.new("RGB", (31, 47)).save(path)
        with pytest.raises(gpupipe.SampleError, match="31x47") as caught:
            by_sample(loader)
    assert caught.value.path == str(path)
