"""resize: resample to a fixed size, or the shorter side to a given length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, model_validator

from gpupipe.pipeline.geometry import shorter_side
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.spec_checks import check_resampling
from gpupipe.pipeline.step import Params, Spec, Step
from gpupipe.schema.field_types import Interpolation, Side, Size


def _alone(value: Any) -> Any:
    """Unpack [n]: as in torchvision, it is the length of the shorter side, not a square."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


class Resize(Step):
    """Resample to another size, as torchvision.transforms.v2.Resize.

    Attributes:
        size: One number sets the shorter side and keeps the aspect ratio; [height, width] sets
            both. In pixels, each 1 to 65535.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        max_size: The longest that the longer side may become, in pixels, larger than `size`. Only
            if `size` is one number. The default is no limit.
        antialias: Low-pass before shrinking. The default is true. Bicubic requires it: without it
            torchvision's cubic has a = -0.75, and the primitive's a = -0.5.
    """

    size: Annotated[Side | Size, BeforeValidator(_alone)]
    interpolation: Interpolation = "bilinear"
    max_size: Side | None = None
    antialias: bool = True

    example: ClassVar[Mapping[str, Any]] = {"size": 100}
    interpolates: ClassVar[bool] = True
    speed_advice: ClassVar[str] = "store images nearer to the size that is trained on"

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

    @model_validator(mode="after")
    def _bicubic_is_antialiased(self) -> Resize:
        if self.interpolation == "bicubic" and not self.antialias:
            raise ValueError(
                "bicubic without antialias differs between engines: set "
                "antialias: true, or take bilinear"
            )
        return self

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_resampling(input_spec)
        if isinstance(self.size, tuple):
            return input_spec.with_size(self.size)
        if input_spec.size:
            height, width = (int(n) for n in self.shape(np.array(input_spec.size, np.float64)))
            return input_spec.with_size((height, width))
        least = (1, 1) if self.max_size else (self.size, self.size)
        return input_spec.with_size((None, None), least)

    def shape(self, size: Any) -> Any:
        """Return the output's [height, width] in pixels for an image of `size` [height, width]."""
        assert isinstance(self.size, int)
        return shorter_side(size, self.size, self.max_size)

    def lower(self, image: Primitives, p: Params) -> None:
        if isinstance(self.size, tuple):
            image.resize(self.size, self.interpolation, self.antialias)
        else:
            image.resize(self.shape(image.size), self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        size = [self.size] if isinstance(self.size, int) else list(self.size)
        mode = InterpolationMode(self.interpolation)
        return F.resize(image, size, mode, max_size=self.max_size, antialias=self.antialias)
