"""Work items hold all that a worker needs of some samples, and can be narrowed to some of them."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from gpupipe.config import build_index
from gpupipe.dataset.columns import read_bytes
from gpupipe.engines.base import Job
from gpupipe.engines.dataloader.work_item import WorkItem, WorkResult, list_recipes
from gpupipe.sampling.sampler import Plan
from helpers.annotated_folder import configure
from helpers.small_images import shrink_all

VIEWS = {
    "steps": ["decode"],
    "views": {"crop": {"count": 2, "steps": [{"random_crop": {"size": 20}}]}},
}


@pytest.fixture(scope="module")
def job(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    root = shrink_all(faces, tmp_path_factory.mktemp("items") / "faces", 48)
    config = configure(root, VIEWS)
    return Job(build_index(config), config.pipeline, config.loader, 1)


def test_some_rows_of_a_work_item_are_a_work_item(job: Job) -> None:
    item = pickle.loads(pickle.dumps(WorkItem.of(job, Plan(0, np.array([7, 2, 9]), 3, True))))
    part = item.select([2, 0])
    for row, number in enumerate((9, 7)):
        expected = Path(job.index.location(number)).read_bytes()
        assert read_bytes(part.columns[0], row).tobytes() == expected
    assert part.parameters.keys() == {"image", "crop_0", "crop_1"}
    drawn, of_part = item.parameters["crop_1"][0], part.parameters["crop_1"][0]
    assert all(np.array_equal(of_part[name], values[[2, 0]]) for name, values in drawn.items())
    assert part.annotations is not None
    assert part.annotations.declared["image"].tolist() == (
        job.index.sizes["image"][[9, 7]].tolist()
    )


def test_recipes_deliver_views_in_place_of_their_field(job: Job) -> None:
    (recipe,) = list_recipes(job)
    assert recipe.name == "image"
    assert [output.name for output in recipe.outputs] == ["crop_0", "crop_1"]
    assert [entry.name for entry in recipe.steps] == ["decode"]
    assert [entry.name for entry in recipe.outputs[0].steps] == ["random_crop"]
    assert not recipe.runs_foreign_steps


def test_a_result_without_tensors_is_pinned_to_itself() -> None:
    result = WorkResult(failed=[(1, "gone")])
    assert result.pin_memory() is result
    assert (result.fields, result.failed, result.shapes) == (None, [(1, "gone")], {})
