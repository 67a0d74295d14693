from __future__ import annotations

from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms import v2

from gpupipe.steps.random_adjust_sharpness import RandomAdjustSharpness
from helpers.color_differences import EXACT, drawn, is_share, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_within_one_of_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_adjust_sharpness", gray=gray, p=1, sharpness_factor=2) <= 1


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    found = most(small_gallery, "random_adjust_sharpness", "float32", p=1, sharpness_factor=2)
    assert found <= EXACT


def test_a_share_of_the_samples_is_changed() -> None:
    assert is_share(drawn("random_adjust_sharpness", sharpness_factor=2, p=0.3)["runs"], 0.3)
    assert RandomAdjustSharpness(sharpness_factor=2).p == v2.RandomAdjustSharpness(2).p


@pytest.mark.parametrize("factor", [0, 0.7, 3])
def test_the_factor_means_what_it_means_in_torchvision(factor: float) -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 9, 12), np.uint8))
    step = RandomAdjustSharpness(sharpness_factor=factor, p=1)
    expected = v2.RandomAdjustSharpness(factor, p=1)(image)
    assert torch.equal(step.torch(image, {"runs": np.int32(1)}), expected)


@pytest.mark.parametrize("factor", [-0.1, float("inf"), True])
def test_other_factors_are_refused(factor: float) -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomAdjustSharpness.model_validate({"sharpness_factor": factor})


def test_a_batch_in_which_no_sample_is_drawn(small_gallery: Path) -> None:
    assert most(small_gallery, "random_adjust_sharpness", p=0, sharpness_factor=2) == 0
