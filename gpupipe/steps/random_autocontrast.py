"""random_autocontrast: stretch each channel to the full range with a given probability."""

from __future__ import annotations

from gpupipe.augment.color_step import RandomColorStep


class RandomAutocontrast(RandomColorStep):
    """Stretch each channel at random, as torchvision.transforms.v2.RandomAutocontrast.

    The darkest value of a channel becomes 0, and the
    brightest one 255, or 1 for floats. The input must be an image of 1 or 3 channels, of uint8 or
    of floats from 0 to 1.

    Attributes:
        p: The probability of the change, 0 to 1. The default is 0.5.
    """

    op = "autocontrast"
