from __future__ import annotations

from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms import v2

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.random_solarize import RandomSolarize
from helpers.color_differences import EXACT, drawn, is_share, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_solarize", gray=gray, p=1, threshold=128) <= 0


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_solarize", "float32", p=1, threshold=0.5) <= EXACT


@pytest.mark.parametrize("threshold", [1, 100, 255])
def test_threshold_means_what_torchvision_means(threshold: int) -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 9, 12), np.uint8))
    expected = v2.RandomSolarize(threshold, p=1)(image)
    step = RandomSolarize(threshold=threshold, p=1)
    assert torch.equal(step.torch(image, {"runs": np.int32(1)}), expected)


def test_a_share_of_the_samples_is_solarized() -> None:
    assert is_share(drawn("random_solarize", threshold=9, p=0.3)["runs"], 0.3)
    assert RandomSolarize(threshold=9).p == v2.RandomSolarize(9).p


@pytest.mark.parametrize(("dtype", "highest"), [("uint8", 255), ("float32", 1)])
def test_a_threshold_that_no_pixel_reaches_is_refused(dtype: str, highest: int) -> None:
    spec = Spec.of_image(3, dtype=dtype)
    assert RandomSolarize(threshold=highest).infer_spec(spec) == spec
    with pytest.raises(
        StepIncompatibleError, match=f"threshold is 256, but {dtype} holds .*: write"
    ):
        RandomSolarize(threshold=256).infer_spec(spec)


def test_an_infinite_threshold_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomSolarize(threshold=float("inf"))
