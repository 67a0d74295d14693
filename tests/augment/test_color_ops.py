from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.augment.color_ops import COLOR_OPS, LUMA

OF_TIMM = {"solarize_add"}


def test_the_operations_are_functions_of_torchvision() -> None:
    assert {name for name in COLOR_OPS if not hasattr(F, name)} == OF_TIMM


@pytest.mark.parametrize("channel", range(3))
def test_luma_is_torchvisions(channel: int) -> None:
    image = torch.zeros(3, 1, 1, dtype=torch.float64)
    image[channel] = 1.0
    assert float(F.rgb_to_grayscale(image)) == pytest.approx(LUMA[channel], abs=1e-7)


def test_every_operation_says_which_values_it_takes() -> None:
    for name, values in COLOR_OPS.items():
        names = [part.split(":")[0] for part in values.split("; ") if ": " in part]
        assert names or values.startswith("no values"), name
