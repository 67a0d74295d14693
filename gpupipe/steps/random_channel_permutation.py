"""random_channel_permutation: put the channels in a random order."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.step import Params


class RandomChannelPermutation(ColorStep):
    """Put the channels in a random order, as torchvision.transforms.v2.RandomChannelPermutation.

    The six orders of three channels are equally probable. An image of one channel keeps it. The
    input must be an image of 1 or 3 channels in uint8, float16 or float32. It has no parameters.
    """

    num_uniforms: ClassVar[int] = 3
    op: ClassVar[str] = "permute_channels"
    takes_any_values: ClassVar[bool] = True

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Return permutation: int32 (B, 3), the channel that becomes each channel."""
        return {"permutation": np.argsort(u, axis=-1, kind="stable").astype(np.int32)}

    def op_values(self, p: Params) -> tuple[Any, ...]:
        return (p["permutation"],)
