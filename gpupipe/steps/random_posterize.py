"""random_posterize: keep the highest bits of each level with a given probability."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupipe.augment.color_step import RandomColorStep
from gpupipe.schema.field_types import WHOLE


class RandomPosterize(RandomColorStep):
    """Keep the highest bits of each level at random, as torchvision's RandomPosterize.

    The input must be an image of 1 or 3 channels of uint8.

    Attributes:
        bits: The number of bits to keep in each channel, 0 to 8.
        p: The probability that the image is posterized, 0 to 1. The default is 0.5.
    """

    bits: Annotated[int, Field(ge=0, le=8), WHOLE]

    op = "posterize"

    example = {"bits": 2}
