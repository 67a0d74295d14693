from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.reference import differences, emitted, load


@pytest.mark.parametrize("size", [112, 111, [115, 112], [50, 115]], ids=str)
def test_inside_the_image_it_is_exact(small_gallery: Path, size: Any) -> None:
    assert max(d.most for d in differences(small_gallery, {"center_crop": {"size": size}})) == 0


@pytest.mark.parametrize("size", [350, [351, 50], [50, 350], [151, 151]], ids=str)
def test_a_smaller_image_is_padded_with_zeros_on_all_sides(small_gallery: Path, size: Any) -> None:
    assert max(d.most for d in differences(small_gallery, {"center_crop": {"size": size}})) == 0


@pytest.mark.parametrize(("short", "crop"), [(128, 112), (129, 112), (128, 113), (131, 131)])
def test_behind_a_resize_it_is_one_resize_without_a_shift(
    gallery: Path, short: int, crop: int
) -> None:
    steps = {"resize": {"size": short}}, {"center_crop": {"size": crop}}
    found = differences(gallery, *steps)
    assert max(d.mean for d in found) < 0.3
    assert max(abs(d.offset) for d in found) < 0.2
    edge = (
        0 if short - crop >= 8 else 4
    )  # a crop well inside has no edge of the image in it: all its pixels are compared
    assert (
        max(
            float(d.levels[:, edge : d.image.shape[1] - edge, edge : d.image.shape[2] - edge].max())
            for d in found
        )
        <= 1
    )
    with load(gallery, *steps) as loader:
        assert emitted(loader) == ["decoders.image_slice", "resize", "transpose"]


def test_two_crops_are_both_done(small_gallery: Path) -> None:
    assert (
        max(
            d.most
            for d in differences(
                small_gallery, {"center_crop": {"size": 100}}, {"center_crop": {"size": [51, 45]}}
            )
        )
        == 0
    )
