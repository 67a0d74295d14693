"""grayscale: the luma of the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from gpupipe.parameters import WHOLE
from gpupipe.step import DaliImage, Params, Spec, Step, decoded

_LUMA = (0.2989, 0.587, 0.114)
"""torchvision's weights (v2.functional.rgb_to_grayscale); they sum to 0.9999, and it truncates."""
_HALF = 0.5 - 2.0**-12
"""Subtracted before DALI rounds, so that it truncates."""


class Grayscale(Step):
    """torchvision.transforms.v2.Grayscale.

    num_output_channels: 1, or 3 equal ones.
    """

    num_output_channels: Annotated[Literal[1, 3], WHOLE] = 1

    def spec(self, given: Spec) -> Spec:
        return replace(decoded(given), channels=self.num_output_channels)

    def dali(self, image: DaliImage, p: Params) -> None:
        from nvidia.dali import fn, types

        if image.spec.channels == 3:
            dtype = types.UINT8 if image.spec.dtype == "uint8" else types.FLOAT
            truncated = -_HALF if image.spec.dtype == "uint8" else 0.0
            gray = fn.coord_transform(image.pixels, M=[*_LUMA], T=[truncated], dtype=dtype)
            image.replace("coord_transform", gray)
        if self.num_output_channels == 3:
            rgb = fn.color_space_conversion(image.pixels, image_type=types.GRAY, output_type=types.RGB)
            image.replace("color_space_conversion", rgb)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.rgb_to_grayscale(image, self.num_output_channels)
