"""resize: resample to a fixed size, or the shorter side to a given length."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, model_validator

from gpupipe.pipeline.geometry import shorter_side
from gpupipe.pipeline.geometry_step import ResamplingStep, torch_interpolation
from gpupipe.pipeline.spec_checks import check_resampling
from gpupipe.pipeline.step import Params, Primitives, Spec
from gpupipe.schema.field_types import Side, Size


def _alone(value: Any) -> Any:
    """Unpack [n]: as in torchvision, it is the length of the shorter side, not a square."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


class Resize(ResamplingStep):
    """Resample to another size, as torchvision.transforms.v2.Resize.

    Attributes:
        size: One number sets the shorter side and keeps the aspect ratio; [height, width] sets
            both. In pixels, each 1 to 65535.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        max_size: The longest that the longer side may become, in pixels, larger than `size`. Only
            if `size` is one number. The default is no limit.
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    size: Annotated[Side | Size, BeforeValidator(_alone)]
    max_size: Side | None = None

    example = {"size": 100}

    @model_validator(mode="after")
    def _max_size_goes_with_one_number(self) -> Resize:
        if self.max_size is not None and (
            not isinstance(self.size, int) or self.max_size <= self.size
        ):
            raise ValueError(
                f"max_size is {self.max_size}, but goes only with one number as size, and "
                "must be larger than it"
            )
        return self

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_resampling(input_spec)
        if isinstance(self.size, tuple):
            return input_spec.with_size(self.size)
        if input_spec.size:
            height, width = (int(n) for n in self.shape(np.array(input_spec.size, np.float64)))
            return input_spec.with_size((height, width))
        min_side = 1 if self.max_size else self.size
        return input_spec.with_size((None, None), (min_side, min_side))

    def shape(self, size: Any) -> Any:
        """Return the output's [height, width] in pixels for an image of `size` [height, width]."""
        assert isinstance(self.size, int)
        return shorter_side(size, self.size, self.max_size)

    def lower(self, image: Primitives, p: Params) -> None:
        shape = self.size if isinstance(self.size, tuple) else self.shape(image.size)
        image.resize(shape, self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        size = [self.size] if isinstance(self.size, int) else list(self.size)
        mode = torch_interpolation(self.interpolation)
        return F.resize(image, size, mode, max_size=self.max_size, antialias=self.antialias)
