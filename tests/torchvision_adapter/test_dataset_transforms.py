"""torchvision's data sets, whose transforms become steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import datasets
from torchvision.transforms import v2

import gpupipe
from helpers import user_functions
from helpers.reference import by_id
from helpers.small_images import shrink_all

FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


def load(dataset: Any, **options: Any) -> gpupipe.Loader:
    return gpupipe.load(dataset, **{"device": "cpu", "engine": "cpu", "ids": True, **options})


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("own") / "faces", 40)


def test_an_image_folder_is_read_as_files_and_its_transform_as_steps(root: Path) -> None:
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomCrop(32),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    dataset = datasets.ImageFolder(root, transform)
    same: list[Any] = ["decode", {"random_crop": {"size": 32}}, "random_horizontal_flip", FLOATS]
    source = {"source": "folder", "root": root}
    with load(dataset, seed=3) as own, load({"data": source, "pipeline": same}, seed=3) as other:
        assert own.index.fingerprint == other.index.fingerprint
        assert own.index.classes == dataset.classes
        expected = by_id(other)
        assert all(torch.equal(image, expected[id]) for id, image in by_id(own).items())
    assert dataset.transform is transform
    with load(dataset, pipeline=["decode", {"center_crop": {"size": 8}}]) as loader:
        image = next(iter(loader))["image"]
        assert (image.shape[1:], image.dtype) == ((3, 8, 8), torch.float32)
    with pytest.raises(gpupipe.ConfigError, match="ImageFolder has a transform, whose steps come"):
        load(dataset, pipeline="affine")


def test_a_function_in_a_transform_is_named_at_the_line_of_load(root: Path) -> None:
    transform = v2.Compose([v2.CenterCrop(8), v2.Lambda(user_functions.halve)])
    with pytest.warns(UserWarning, match="no step equals") as warned:
        load(datasets.ImageFolder(root, transform)).close()
    ours = [each.filename for each in warned if "no step equals" in str(each.message)]
    assert ours == [__file__]
