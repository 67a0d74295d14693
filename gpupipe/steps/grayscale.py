"""grayscale: convert to the luma of the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from gpupipe.pipeline.axes import in_float32, picture
from gpupipe.pipeline.step import DaliImage, Params, Spec, Step, StepIncompatible
from gpupipe.schema.field_types import WHOLE

_LUMA = (0.2989, 0.587, 0.114)
"""torchvision's weights (v2.functional.rgb_to_grayscale); they sum to 0.9999, and it truncates."""
_HALF = 0.5 - 2.0**-12
"""Subtracted before DALI rounds, so that it truncates."""


class Grayscale(Step):
    """Convert RGB to luma, as torchvision.transforms.v2.Grayscale.

    The luma is 0.2989 R + 0.587 G + 0.114 B. An image of one channel keeps its values.

    Attributes:
        num_output_channels: 1, or 3 equal ones. The default is 1.

    """

    num_output_channels: Annotated[Literal[1, 3], WHOLE] = 1

    def spec(self, given: Spec) -> Spec:
        if "C" not in picture(given).layout or given.channels not in (None, 1, 3):
            raise StepIncompatible(
                f"it works on 1 or 3 channels, but gets {given} in the layout "
                f"{given.layout}: leave it out"
            )
        return replace(given, channels=self.num_output_channels)

    def dali(self, image: DaliImage, p: Params) -> None:
        from nvidia.dali import fn, types

        levels = image.spec.dtype == "uint8"
        # On a GPU color_space_conversion launches one kernel per sample of the batch. On a CPU it
        # takes a third of the time of a coord_transform with three rows.
        repeat = self.num_output_channels == 3 and levels and image.device == "cpu"
        rows = 1 if repeat else self.num_output_channels
        how = {"dtype": types.UINT8 if levels else types.FLOAT}
        if image.spec.channels == 3:
            how |= {"M": [*_LUMA] * rows, "T": [-_HALF if levels else 0.0] * rows}
        else:
            how |= {"M": [1.0] * rows, "T": [0.0] * rows}
        if image.spec.channels == 3 or rows == 3:
            image.apply("coord_transform", lambda pixels: fn.coord_transform(pixels, **how))
        if repeat:
            kinds = {"image_type": types.GRAY, "output_type": types.RGB}
            image.apply(
                "color_space_conversion", lambda pixels: fn.color_space_conversion(pixels, **kinds)
            )

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return in_float32(
            image, lambda pixels: F.rgb_to_grayscale(pixels, self.num_output_channels)
        )
