"""random_invert: invert the colours with a given probability."""

from __future__ import annotations

from gpupipe.augment.color_step import RandomColorStep


class RandomInvert(RandomColorStep):
    """Invert the colours at random, as torchvision.transforms.v2.RandomInvert.

    The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        p: The probability of the inversion, 0 to 1. The default is 0.5.
    """

    op = "invert"
