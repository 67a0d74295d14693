from __future__ import annotations

from pathlib import Path

import pydantic
import pytest
from torchvision.transforms import v2

from gpupipe.steps.random_autocontrast import RandomAutocontrast
from helpers.color_differences import EXACT, drawn, is_share, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_within_one_of_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_autocontrast", gray=gray, p=1) <= 1


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_autocontrast", "float32", p=1) <= EXACT


def test_a_share_of_the_samples_is_changed() -> None:
    assert is_share(drawn("random_autocontrast", p=0.3)["runs"], 0.3)
    assert RandomAutocontrast().p == v2.RandomAutocontrast().p


def test_a_probability_above_1_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="less than or equal to 1"):
        RandomAutocontrast(p=1.5)
