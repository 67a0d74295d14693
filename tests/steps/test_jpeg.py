from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.jpeg import Jpeg
from helpers.color_differences import drawn, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("quality", [[1, 100], 75])
def test_dali_on_a_cpu_makes_the_pixels_of_pillow(gallery: Path, gray: bool, quality: Any) -> None:
    assert most(gallery, "jpeg", gray=gray, quality=quality) == 0


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
@pytest.mark.parametrize("channels", [1, 3])
def test_pillow_makes_the_pixels_of_torchvision(channels: int) -> None:
    image = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (channels, 37, 50), np.uint8)
    )
    made = Jpeg.model_validate({"quality": 60}).torch(image, {"quality": np.int32(60)})
    assert torch.equal(made, F.jpeg(image, 60))
    assert not torch.equal(made, image)


def test_each_quality_is_equally_probable() -> None:
    values, counts = np.unique(
        drawn("jpeg", 60_000, quality=[5, 10])["quality"], return_counts=True
    )
    assert values.tolist() == [5, 6, 7, 8, 9, 10]
    assert np.abs(counts - 10_000).max() < 500
    assert set(drawn("jpeg", 9, quality=30)["quality"]) == {30}


@pytest.mark.parametrize("quality", [0, 101, [9, 5], [1, 2, 3], 7.5, True, None])
def test_other_qualities_are_refused(quality: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        Jpeg.model_validate({"quality": quality})


def test_floats_are_refused() -> None:
    floats = Spec.of_image(3, dtype="float32")
    with pytest.raises(
        StepIncompatibleError, match="works on uint8, but gets float32: write 'to_dtype"
    ):
        Jpeg.model_validate({"quality": 9}).infer_spec(floats)
