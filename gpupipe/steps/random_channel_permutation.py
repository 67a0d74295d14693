"""random_channel_permutation: put the channels in a random order."""

from __future__ import annotations

import numpy as np

from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.step import Sampled, Uniforms


class RandomChannelPermutation(ColorStep):
    """Put the channels in a random order, as torchvision.transforms.v2.RandomChannelPermutation.

    The six orders of three channels are equally probable. An image of one channel keeps it. The
    input must be an image of 1 or 3 channels in uint8, float16 or float32. It has no parameters.
    """

    num_uniforms = 3
    op = "permute_channels"
    takes_any_values = True

    def sample(self, u: Uniforms) -> Sampled:
        """Return permutation: int32 (B, 3), the input channel of each output channel."""
        return {"permutation": np.argsort(u, axis=-1, kind="stable").astype(np.int32)}
