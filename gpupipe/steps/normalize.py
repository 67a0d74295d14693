"""normalize: subtract a mean and divide by a standard deviation, per channel."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from gpupipe.dataset.spec import PAIR
from gpupipe.pipeline.spec_checks import (
    DTYPES_TAKEN,
    check_channels,
    check_decoded,
    check_per_channel,
)
from gpupipe.pipeline.step import Params, Primitives, Spec, Step, StepIncompatibleError, of_any_size
from gpupipe.runtime.memory import to_device
from gpupipe.schema.field_types import PositiveChannels, Value


class Normalize(Step):
    """Compute (x - mean) / std, as torchvision.transforms.v2.Normalize.

    The input must be of a float dtype. `data.layout` says which axis holds the channels. `mean` and
    `std` have the same length.

    Attributes:
        mean: One number a channel, in the scale of the image (0 to 1 after to_dtype with scale).
            One number alone is for all channels.
        std: One number a channel, in the scale of the image (0 to 1 after to_dtype with scale).
            Above 0. One number alone is for all channels.
    """

    mean: Value
    std: PositiveChannels

    example = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    can_run_on_batches = True
    speed_advice = (
        "leave it out with to_dtype, and do both on the GPU: a batch of uint8 is a quarter of one "
        "of float32"
    )

    @model_validator(mode="after")
    def _same_length(self) -> Normalize:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} numbers and std has {len(self.std)}: write one "
                "a channel in both"
            )
        return self

    def infer_spec(self, input_spec: Spec) -> Spec:
        if check_decoded(input_spec).dtype not in DTYPES_TAKEN["normalize"]:
            raise StepIncompatibleError(
                f"it needs floats, but gets {input_spec.dtype}: write 'to_dtype: {{dtype: "
                f"float32, scale: true}}' before it"
            )
        if PAIR in input_spec.layout and any(self.mean):
            raise StepIncompatibleError(
                "mean would also be subtracted from the imaginary parts: write mean: 0"
            )
        check_channels(check_per_channel("mean", self.mean, input_spec))
        return input_spec.with_values("normalized")

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec:
        return of_any_size(input_spec).with_values("normalized")

    def lower(self, image: Primitives, p: Params) -> None:
        image.normalize(self.mean, self.std)

    def torch(self, image: Any, p: Params) -> Any:
        import torch

        mean, std = (
            to_device(torch.tensor(numbers, dtype=image.dtype), image.device).reshape(
                -1, *[1] * self._space
            )
            for numbers in (self.mean, self.std)
        )
        return image.sub(mean).div_(std)
