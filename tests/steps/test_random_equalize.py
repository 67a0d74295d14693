from __future__ import annotations

from pathlib import Path

import pydantic
import pytest
from torchvision.transforms import v2

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.random_equalize import RandomEqualize
from helpers.color_differences import compared, drawn, is_share, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_within_one_of_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_equalize", gray=gray, p=1) <= 1


def test_the_mean_is_torchvisions_to_a_third_of_a_level(small_gallery: Path) -> None:
    """DALI rounds once for its own step, and again for PIL's."""
    assert max(abs(d.offset) for d in compared(small_gallery, "random_equalize", p=1)) < 0.33


def test_a_share_of_the_samples_is_equalized() -> None:
    assert is_share(drawn("random_equalize", p=0.3)["runs"], 0.3)
    assert RandomEqualize().p == v2.RandomEqualize().p


def test_floats_are_refused() -> None:
    floats = Spec.of_image(3, dtype="float16")
    with pytest.raises(
        StepIncompatibleError, match="works on uint8, but gets float16: write 'to_dtype"
    ):
        RandomEqualize().infer_spec(floats)


def test_a_probability_above_1_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="less than or equal to 1"):
        RandomEqualize(p=1.5)
