from __future__ import annotations

from pathlib import Path

import pytest
from reference import differences


@pytest.mark.parametrize("channels", [1, 3])
def test_within_a_level_and_truncated_as_torchvision_does(gallery: Path, channels: int) -> None:
    found = differences(gallery, {"grayscale": {"num_output_channels": channels}})
    assert found[0].image.shape[0] == channels
    assert max(d.most for d in found) <= 1
    assert max(d.mean for d in found) < 0.05


@pytest.mark.parametrize("channels", [1, 3])
def test_of_a_gray_image(gallery: Path, channels: int) -> None:
    steps = {"grayscale": {}}, {"grayscale": {"num_output_channels": channels}}
    found = differences(gallery, *steps)
    assert found[0].image.shape[0] == channels
    assert max(d.most for d in found) <= 1


def test_of_floats(gallery: Path) -> None:
    found = differences(gallery, {"to_dtype": {"dtype": "float32", "scale": True}}, "grayscale")
    assert max(d.most for d in found) < 1e-5
