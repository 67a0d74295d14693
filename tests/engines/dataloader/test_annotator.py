"""The annotations of a work item are moved before its images are decoded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpupipe.config import build_index
from gpupipe.decoders.chain import DecoderChain
from gpupipe.engines.base import Job
from gpupipe.engines.dataloader.annotator import Annotator
from gpupipe.engines.dataloader.work_item import WorkItem, list_recipes
from gpupipe.sampling.sampler import Plan
from helpers.annotated_folder import configure
from helpers.small_images import shrink_all


@pytest.fixture
def job(faces: Path, tmp_path: Path) -> Job:
    root = shrink_all(faces, tmp_path / "faces", 48)
    config = configure(root, ["decode", "random_iou_crop", {"resize": {"size": [20, 30]}}])
    return Job(build_index(config), config.pipeline, config.loader, 1)


def annotator_of(job: Job) -> Annotator:
    return Annotator(job.pipeline, list_recipes(job), DecoderChain(), None)


def test_a_sample_that_fails_costs_only_itself(job: Job) -> None:
    plan = Plan(0, np.array([0, 3, 1]), 3, True)
    Path(job.index.location(3)).write_bytes(b"no image")
    wrong = {"image": job.index.sizes["image"].copy()}
    wrong["image"][1] += 7
    item, failed = WorkItem.of(replace(job, index=replace(job.index, sizes=wrong)), plan), {}
    rows, annotations = annotator_of(job).annotate(item, [0, 1, 2], failed)
    assert rows == [0]
    assert "not an image" in failed[1]
    assert "its annotations are of an image of" in failed[2]
    assert annotations is not None
    values, offsets = annotations.rows["boxes"]
    assert offsets.tolist() == [0, len(values)]
    assert values.min() >= 0
    assert (values.reshape(-1, 2).max(0) <= [30, 20]).all()


def test_opened_files_stay_in_the_work_item(job: Job) -> None:
    item = WorkItem.of(job, Plan(0, np.array([4, 2]), 2, True))
    rows, annotations = annotator_of(job).annotate(item, [0, 1], {})
    assert item.opened.keys() == {("image", 0), ("image", 1)}
    assert annotations is not None
    crops = annotations.parameters["image"][1]
    assert crops["crops"].shape == (len(rows),)


def test_all_samples_may_fail(job: Job) -> None:
    Path(job.index.location(5)).unlink()
    failed: dict[int, str] = {}
    item = WorkItem.of(job, Plan(0, np.array([5]), 1, True))
    assert annotator_of(job).annotate(item, [0], failed) == ([], None)
    assert "no such file" in failed[0].lower()
