"""random_adjust_sharpness: sharpen or smooth with a given probability."""

from __future__ import annotations

from gpupipe.augment.color_step import RandomColorStep
from gpupipe.schema.field_types import NotNegative


class RandomAdjustSharpness(RandomColorStep):
    """Sharpen or smooth at random, as torchvision.transforms.v2.RandomAdjustSharpness.

    The border of one pixel keeps its values. The input must be an image of 1 or 3 channels, of
    uint8 or of floats from 0 to 1.

    Attributes:
        sharpness_factor: 0 or more: 0 smooths, 1 changes nothing, 2 doubles the sharpness.
        p: The probability of the change, 0 to 1. The default is 0.5.
    """

    sharpness_factor: NotNegative

    op = "adjust_sharpness"

    example = {"sharpness_factor": 5}
