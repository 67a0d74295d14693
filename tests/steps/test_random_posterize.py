from __future__ import annotations

from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms import v2

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.random_posterize import RandomPosterize
from helpers.color_differences import drawn, is_share, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_posterize", gray=gray, p=1, bits=3) <= 0


@pytest.mark.parametrize("bits", [0, 1, 5])
def test_bits_mean_what_torchvision_means(bits: int) -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 9, 12), np.uint8))
    expected = v2.RandomPosterize(bits, p=1)(image)
    step = RandomPosterize(bits=bits, p=1)
    assert torch.equal(step.torch(image, {"runs": np.int32(1)}), expected)


def test_a_share_of_the_samples_is_posterized() -> None:
    assert is_share(drawn("random_posterize", bits=4, p=0.3)["runs"], 0.3)
    assert RandomPosterize(bits=4).p == v2.RandomPosterize(4).p


@pytest.mark.parametrize("bits", [-1, 9, 2.5, True])
def test_other_bits_are_refused(bits: float) -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomPosterize.model_validate({"bits": bits})


def test_floats_are_refused() -> None:
    floats = Spec.of_image(3, dtype="float32")
    with pytest.raises(
        StepIncompatibleError, match="works on uint8, but gets float32: write 'to_dtype"
    ):
        RandomPosterize(bits=4).infer_spec(floats)
