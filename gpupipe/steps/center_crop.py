"""center_crop: cut out the centre of the image."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import Self

from gpupipe.pipeline.geometry import center_offset, expand_sides
from gpupipe.pipeline.step import Params, Primitives, Spec, Step
from gpupipe.pipeline.tensors import cut
from gpupipe.schema.field_types import Window


class CenterCrop(Step):
    """Cut out the centre, as torchvision.transforms.v2.CenterCrop.

    A smaller image is padded with zeros on all sides.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535. For
            a volume, one number or [depth, height, width]; for a series, one number.
    """

    size: Window

    example = {"size": 150}

    def resolve(self, input_spec: Spec) -> Self:
        size = expand_sides("size", self.size, input_spec)
        return super().resolve(input_spec).model_copy(update={"size": size})

    def infer_spec(self, input_spec: Spec) -> Spec:
        return input_spec.with_size(expand_sides("size", self.size, input_spec))

    def lower(self, image: Primitives, p: Params) -> None:
        fits = (np.array(image.spec.at_least) >= self.size).all()
        anchor = center_offset(np.array(self.size, np.float64), image.size)
        image.crop(anchor, self.size, fill=None if fits else (0.0,))

    def torch(self, image: Any, p: Params) -> Any:
        size = np.array(image.shape[-len(self.size) :], np.float64)
        return cut(image, center_offset(np.array(self.size, np.float64), size), self.size)
