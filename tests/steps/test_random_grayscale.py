from __future__ import annotations

from pathlib import Path

import pydantic
import pytest
from torchvision.transforms import v2

from gpupipe.steps.random_grayscale import RandomGrayscale
from helpers.color_differences import EXACT, compared, drawn, is_share, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_within_one_of_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_grayscale", gray=gray, p=1) <= 1


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_grayscale", "float32", p=1) <= EXACT


def test_the_channels_stay_three_and_become_equal(small_gallery: Path) -> None:
    for d in compared(small_gallery, "random_grayscale", p=1):
        assert d.image.shape[0] == 3
        assert bool((d.image == d.image[:1]).all())


def test_a_share_of_the_samples_is_converted() -> None:
    assert is_share(drawn("random_grayscale", p=0.3)["runs"], 0.3)
    assert RandomGrayscale().p == v2.RandomGrayscale().p == 0.1


def test_a_probability_above_1_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="less than or equal to 1"):
        RandomGrayscale(p=1.5)
