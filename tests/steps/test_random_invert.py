from __future__ import annotations

from pathlib import Path

import pydantic
import pytest
from torchvision.transforms import v2

from gpupipe.steps.random_invert import RandomInvert
from helpers.color_differences import EXACT, drawn, is_share, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_invert", gray=gray, p=1) <= 0


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_invert", "float32", p=1) <= EXACT


def test_a_share_of_the_samples_is_inverted() -> None:
    assert is_share(drawn("random_invert", p=0.3)["runs"], 0.3)
    assert drawn("random_invert", p=0)["runs"].max() == 0
    assert drawn("random_invert", p=1)["runs"].min() == 1
    assert RandomInvert().p == v2.RandomInvert().p


def test_a_probability_above_1_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="less than or equal to 1"):
        RandomInvert(p=1.5)


def test_only_the_drawn_samples_are_changed(small_gallery: Path) -> None:
    assert most(small_gallery, "random_invert", p=0.5) == 0
