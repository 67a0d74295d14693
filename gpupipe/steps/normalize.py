"""normalize: subtract a mean and divide by a standard deviation, per channel."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from gpupipe.parameters import Channels, PositiveChannels
from gpupipe.step import FLOATS, DaliImage, Params, Refused, Spec, Step, decoded, one_a_channel


class Normalize(Step):
    """torchvision.transforms.v2.Normalize: (x - mean) / std.

    mean, std: one number a channel, in the scale of the image (0 to 1 after to_dtype with scale).
    """

    mean: Channels
    std: PositiveChannels

    @model_validator(mode="after")
    def _same_length(self) -> Normalize:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} numbers and std has {len(self.std)}: write one a channel in both")
        return self

    def spec(self, given: Spec) -> Spec:
        if decoded(given).dtype not in FLOATS:
            raise Refused(f"it needs floats, but gets {given.dtype}: write 'to_dtype: {{dtype: float32, scale: true}}' before it")
        return one_a_channel("mean", self.mean, given)

    def dali(self, image: DaliImage, p: Params) -> None:
        image.normalize(self.mean, self.std)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.normalize(image, list(self.mean), list(self.std))
