"""five_crop and ten_crop: cut out the four corners and the centre, as the fields of a view."""

import math
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpupipe.pipeline.geometry import center_offset, describe_small_image
from gpupipe.pipeline.spec_checks import check_plane
from gpupipe.pipeline.step import (
    Params,
    Primitives,
    SampleIncompatibleError,
    Spec,
    Step,
    StepIncompatibleError,
)
from gpupipe.pipeline.tensors import cut, flip
from gpupipe.schema.field_types import WHOLE, Size

_CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
"""[top, left] of the crops in the corners, as shares of the free space, in torchvision's order."""
_CROPS = len(_CORNERS) + 1


class MultiCrop(Step):
    """Cut out the four corners and the centre. Each field of a view gets one of the crops.

    Crops 0 to 4 are those of the image. Crops 5 to 9, in ten_crop, are those of the mirrored image.

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

    def explain_refusal(self) -> str:
        return (
            "an object would be in several of its crops, and torchvision has no rule for its box: "
            "write center_crop or random_crop"
        )

    @property
    def is_mirrored(self) -> bool:
        """Whether `crop` is one of the crops of the mirrored image, 5 to 9."""
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


class FiveCrop(MultiCrop):
    """Cut out the four corners and the centre, as torchvision.transforms.v2.FiveCrop.

    It is the first step of a view with `count: 5`, whose fields are the crops in torchvision's
    order: top left, top right, bottom left, bottom right, centre. An image smaller than `size` is
    an error.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535.
        crop: The index of the crop, 0 to 4. By default field n of the view gets crop n.

    Examples:
        ::

            pipeline:
              steps: [decode, {resize: {size: 256}}]
              views:
                crop: {count: 5, steps: [{five_crop: {size: 224}}]}
    """

    num_views = 5


class TenCrop(MultiCrop):
    """Cut out five crops, and five of the mirrored image, as torchvision.transforms.v2.TenCrop.

    It is the first step of a view with `count: 10`, whose fields are the crops in torchvision's
    order: top left, top right, bottom left, bottom right, centre; then the same five of the
    mirrored image. An image smaller than `size` is an error.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535.
        crop: The index of the crop, 0 to 9. By default field n of the view gets crop n.
        vertical_flip: Mirror the image by swapping top and bottom; if false, the default, by
            swapping left and right.
    """

    vertical_flip: bool = False

    num_views = 10

    @property
    def mirrored_axis(self) -> int:
        """The axis along which the later crops are mirrored: 0 for height, 1 for width."""
        return 0 if self.vertical_flip else 1
