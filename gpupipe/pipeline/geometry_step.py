"""Bases of steps that move pixels: to another size, by a matrix, or out of a window.

    ResamplingStep    to another size: resize, random_resized_crop
      ResizingStep    to a size that is drawn for each image: random_resize, scale_jitter and so on
    WarpingStep       moved, and filled outside the image: random_affine, random_rotation and so on
    MultiCrop         five_crop and ten_crop, whose crops are the fields of a view

geometry.py has their formulas.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import Self

from gpupipe.pipeline.geometry import center_offset, describe_small_image
from gpupipe.pipeline.spec_checks import (
    add_fill,
    check_per_channel,
    check_picture,
    check_plane,
    check_resampling,
)
from gpupipe.pipeline.step import (
    Params,
    Primitives,
    SampleIncompatibleError,
    Spec,
    Step,
    StepIncompatibleError,
)
from gpupipe.pipeline.tensors import cut, flip
from gpupipe.schema.field_types import WHOLE, Fill, Interpolation, Resampling, Size


def torch_interpolation(name: str) -> Any:
    """Return torchvision's InterpolationMode for a name such as "bilinear"."""
    from torchvision.transforms.v2 import InterpolationMode

    return InterpolationMode(name)


class ResamplingStep(Step):
    """The base of steps that make an image of another size.

    Attributes:
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it: without
            it torchvision's cubic has a = -0.75, and the primitive's a = -0.5.
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


class ResizingStep(ResamplingStep):
    """The base of steps that resize each image to a size that is drawn for it.

    Subclasses define `shape`, and the lower bound of its sides, `min_side`.
    """

    @property
    def min_side(self) -> int:
        """A lower bound of the sides of every output, in pixels."""
        return 1

    def shape(self, p: Params, size: Any) -> Any:
        """Return [height, width] of the output in whole pixels, (..., 2), each at least 1.

        Args:
            p: The arrays that `sample` returned.
            size: [height, width] of the image in pixels, (..., 2).
        """
        raise NotImplementedError

    def infer_spec(self, input_spec: Spec) -> Spec:
        return check_resampling(input_spec).with_size((None, None), (self.min_side, self.min_side))

    def lower(self, image: Primitives, p: Params) -> None:
        image.resize(self.shape(p, image.size), self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        shape = self.shape(p, np.array(image.shape[-2:], np.float64)).astype(int).tolist()
        mode = torch_interpolation(self.interpolation)
        return F.resize(image, shape, mode, antialias=self.antialias)


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


_CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
"""[top, left] of the crops in the corners, as shares of the free space, in torchvision's order."""
_CROPS = len(_CORNERS) + 1


class MultiCrop(Step):
    """Cut out the four corners and the centre. Each field of a view gets one of the crops.

    Crops from number 5 on are those of the mirrored image.

    Attributes:
        size: One number for a square, or [height, width], in pixels.
        crop: The index of the crop. By default field n of the view gets crop n.
    """

    size: Size
    crop: Annotated[int, Field(ge=0), WHOLE] | None = None

    example = {"size": 150}

    @model_validator(mode="after")
    def _is_among_the_crops(self) -> Self:
        if self.crop is not None and self.crop >= self.num_views:
            raise ValueError(f"crop is {self.crop}, but should be at most {self.num_views - 1}")
        return self

    @property
    def mirrored_axis(self) -> int:
        """The axis along which the later crops are mirrored: 0 for height, 1 for width."""
        return 1

    def select_view(self, number: int) -> Self:
        return self.model_copy(update={"crop": number}) if self.crop is None else self

    def infer_spec(self, input_spec: Spec) -> Spec:
        if self.crop is None:
            raise StepIncompatibleError(
                f"it makes {self.num_views} images of one: write it as the first step of a view "
                f"with 'count: {self.num_views}', under 'views'"
            )
        check_plane(input_spec)
        height, width = (math.inf if side is None else side for side in input_spec.sides)
        if height < self.size[0] or width < self.size[1]:
            size = "x".join(str(side or "?") for side in input_spec.sides)
            raise StepIncompatibleError(
                f"the size is {self.size[0]}x{self.size[1]}, but the images have {size} pixels: "
                "write a smaller size, or a resize under 'steps'"
            )
        return input_spec.with_size(self.size)

    @property
    def is_mirrored(self) -> bool:
        """Whether the crop is one of the mirrored image."""
        return (self.crop or 0) >= _CROPS

    def anchor(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [top, left] of the crop in the unmirrored image, in pixels, (..., 2).

        Args:
            size: [height, width] of the image in pixels, (..., 2).
        """
        shape = np.array(self.size, np.float64)
        number = (self.crop or 0) % _CROPS
        anchor: NDArray[np.float64] = (
            np.array(_CORNERS[number]) * (size - shape)
            if number < len(_CORNERS)
            else center_offset(shape, size)
        )
        if not self.is_mirrored:
            return anchor
        return np.where(np.arange(2) == self.mirrored_axis, size - shape - anchor, anchor)

    def lower(self, image: Primitives, p: Params) -> None:
        image.crop(self.anchor(image.size), self.size)
        if self.is_mirrored:
            flags = np.ones(len(image.present), np.int32)
            image.flip(**{("vertical", "horizontal")[self.mirrored_axis]: flags})

    def torch(self, image: Any, p: Params) -> Any:
        size = np.array(image.shape[-2:], np.float64)
        if (size < self.size).any():
            raise SampleIncompatibleError(describe_small_image(image.shape[-2:], self.size))
        cropped = cut(image, self.anchor(size), self.size)
        return flip(cropped, [self.mirrored_axis - 2]) if self.is_mirrored else cropped
