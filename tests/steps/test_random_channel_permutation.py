from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.color_differences import compared, drawn, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_are_torchvisions(small_gallery: Path, dtype: str, gray: bool) -> None:
    assert most(small_gallery, "random_channel_permutation", dtype, gray) == 0


def test_the_channels_are_in_another_order(small_gallery: Path) -> None:
    """In five of six images, on average."""
    permutations = drawn("random_channel_permutation", 10)["permutation"]
    assert (permutations != np.arange(3)).any(-1).sum() > 5
    assert len(compared(small_gallery, "random_channel_permutation")) == 10


def test_the_six_orders_are_equally_probable() -> None:
    permutations = drawn("random_channel_permutation", 60_000)["permutation"]
    orders, counts = np.unique(permutations, axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.abs(counts - 10_000).max() < 500
