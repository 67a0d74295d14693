"""Bases of steps that move pixels: to another size, by a matrix, or by a displacement.

    ResamplingStep    to another size: resize, random_resized_crop, random_resize and so on
    WarpingStep       moved, and filled outside the image: random_affine, random_rotation and so on

geometry.py has their formulas.
"""

from typing import Any, Self

from pydantic import model_validator

from gpupipe.pipeline.spec_checks import add_fill, check_per_channel, check_picture
from gpupipe.pipeline.step import Spec, Step
from gpupipe.schema.field_types import Fill, Interpolation, Resampling


def torch_interpolation(name: str) -> Any:
    """Return torchvision's InterpolationMode for a name such as "bilinear"."""
    from torchvision.transforms.v2 import InterpolationMode

    return InterpolationMode(name)


class ResamplingStep(Step):
    """The base of steps that make an image of another size.

    Attributes:
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it: without
            antialias, torchvision's cubic kernel has a = -0.75, but the primitive's has a = -0.5.
    """

    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    interpolates = True
    speed_advice = "store images nearer to the size that is trained on"

    @model_validator(mode="after")
    def _bicubic_is_antialiased(self) -> Self:
        if self.interpolation == "bicubic" and not self.antialias:
            raise ValueError(
                "bicubic without antialias differs between engines: set "
                "antialias: true, or take bilinear"
            )
        return self


class WarpingStep(Step):
    """The base of steps that move pixels, and fill what lies outside the image.

    The input must be an image of 1 to 4 channels in uint8, float16 or float32.

    Attributes:
        interpolation: "nearest" (the default) or "bilinear".
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is 0. Masks get 0; {image: ..., mask: ...} changes that.
    """

    interpolation: Resampling = "nearest"
    fill: Fill = (0.0,)

    interpolates = True
    speed_advice = "interpolation: nearest costs less than bilinear"

    def infer_spec(self, input_spec: Spec) -> Spec:
        return add_fill(self.fill, check_per_channel("fill", self.fill, check_picture(input_spec)))
