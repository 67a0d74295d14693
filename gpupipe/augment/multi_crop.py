"""MultiCrop: the base of five_crop and ten_crop, whose crops are the fields of a view."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import Self

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

    Crops from number 5 on are those of the mirrored image.

    Attributes:
        size: One number for a square, or [height, width], in pixels.
        crop: The number of the crop; None if it is not known yet.
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
        sides = zip(input_spec.sides, self.size, strict=True)
        if any(side is not None and side < least for side, least in sides):
            known = [side or "?" for side in input_spec.sides]
            raise StepIncompatibleError(
                f"the size is {self.size[0]}x{self.size[1]}, but the images have "
                f"{known[0]}x{known[1]} pixels: write a smaller size, or a resize under 'steps'"
            )
        return input_spec.with_size(self.size)

    @property
    def is_mirrored(self) -> bool:
        """Whether the crop is one of the mirrored image."""
        return (self.crop or 0) >= _CROPS

    def anchor(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [top, left] of the crop in an image of `size`, [height, width], not mirrored."""
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
