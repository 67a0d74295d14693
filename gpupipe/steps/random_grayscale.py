"""random_grayscale: convert to luma in all channels with a given probability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_ops import LUMA
from gpupipe.augment.color_step import ColorStep, apply_where
from gpupipe.pipeline.channel_checks import count_channels
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import Params
from gpupipe.schema.field_types import Probability


class RandomGrayscale(ColorStep):
    """Convert RGB to luma at random, as torchvision.transforms.v2.RandomGrayscale.

    The luma is 0.2989 R + 0.587 G + 0.114 B, in all three channels. An image of one channel keeps
    its values. The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        p: The probability of the conversion, 0 to 1. The default is 0.1.
    """

    p: Probability = 0.1

    example: ClassVar[Mapping[str, Any]] = {"p": 0.5}
    num_uniforms: ClassVar[int] = 1

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Return runs: int32 (B,), 1 for the samples to convert, else 0."""
        return {"runs": (u[:, 0] < self.p).astype(np.int32)}

    def lower_color(self, image: Primitives, p: Params) -> None:
        if count_channels(image.spec) == 3:
            apply_where(p["runs"], image, lambda part: part.color_matrix([LUMA] * 3))

    def torch_color(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.rgb_to_grayscale(image, image.shape[-3]) if p["runs"] else image
