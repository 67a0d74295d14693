"""random_grayscale: convert to luma in all channels with a given probability."""

from __future__ import annotations

from typing import Any

from gpupipe.augment.color_ops import LUMA
from gpupipe.augment.color_step import RandomColorStep, apply_where
from gpupipe.pipeline.spec_checks import count_channels
from gpupipe.pipeline.step import Params, Primitives
from gpupipe.schema.field_types import Probability


class RandomGrayscale(RandomColorStep):
    """Convert RGB to luma at random, as torchvision.transforms.v2.RandomGrayscale.

    The luma is 0.2989 R + 0.587 G + 0.114 B, in all three channels. An image of one channel keeps
    its values. The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        p: The probability of the conversion, 0 to 1. The default is 0.1.
    """

    p: Probability = 0.1

    example = {"p": 0.5}

    def lower_color(self, image: Primitives, p: Params) -> None:
        if count_channels(image.spec) == 3:
            apply_where(p["runs"], image, lambda part: part.color_matrix([LUMA] * 3))

    def torch_color(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.rgb_to_grayscale(image, image.shape[-3]) if p["runs"] else image
