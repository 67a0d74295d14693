"""What all engines share of a batch: what the index adds, and the two samples that are named where
shapes differ.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe import config
from gpupipe.engines.base import Job
from gpupipe.engines.batch import check_shapes, labels_and_values
from gpupipe.runtime.progress import ignore_progress
from gpupipe.sampling.sampler import Plan

PLAN = Plan(0, np.array([3, 0, 2]), 3, False)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Four images of two classes, from a manifest with a column of numbers."""
    for n in range(4):
        Image.new("L", (4, 3)).save(tmp_path / f"{n}.png")
    rows = [f"{n}.png,{'ab'[n % 2]},{n / 4}" for n in range(4)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,age", *rows]))
    data = {"source": "file_list", "file": tmp_path / "list.csv", "values": ["age"]}
    checked = config.read({"data": data, "pipeline": ["decode"]}, device="cpu")
    return Job(checked.source.index(ignore_progress), checked.pipeline, checked.loader, 1)


def test_labels_values_and_ids_are_those_of_the_plan(job: Job) -> None:
    batch = labels_and_values(job.index, PLAN, torch.device("cpu"))
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "age": [0.75, 0.0, 0.5],
        "label": [1, 0, 0],
        "id": [3, 0, 2],
    }
    assert batch["label"].dtype == batch["id"].dtype == torch.int64


def test_equal_shapes_pass(job: Job) -> None:
    check_shapes({"image": [(3, 4, 5)] * 3}, PLAN, job)


def test_the_first_two_samples_that_differ_are_named(job: Job) -> None:
    shapes = {"image": [(3, 4, 5), (3, 4, 5), (3, 7, 5)]}
    with pytest.raises(gpupipe.ShapeError, match=r"3\.png is 4x5, .*2\.png is 7x5\. Add a step"):
        check_shapes(shapes, PLAN, job)
