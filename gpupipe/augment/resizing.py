"""ResizingStep: the base of steps that resize each image to a size that is drawn for it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import model_validator
from typing_extensions import Self

from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.spec_checks import check_resampling
from gpupipe.pipeline.step import Params, Spec, Step
from gpupipe.schema.field_types import Interpolation


class ResizingStep(Step):
    """The base of steps that resize each image to a size that is drawn for it.

    Subclasses define `shape`, and the bound of its sides, `least`.

    Attributes:
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    interpolates: ClassVar[bool] = True
    speed_advice: ClassVar[str] = "store images nearer to the size that is trained on"

    @model_validator(mode="after")
    def _bicubic_is_antialiased(self) -> Self:
        if self.interpolation == "bicubic" and not self.antialias:
            raise ValueError(
                "bicubic without antialias differs between engines: set "
                "antialias: true, or take bilinear"
            )
        return self

    @property
    def least(self) -> int:
        """A lower bound of the sides of every output, in pixels."""
        return 1

    def shape(self, p: Params, size: Any) -> Any:
        """Return [height, width] of the output in whole pixels, (..., 2), each at least 1.

        Args:
            p: What `sample` returned.
            size: [height, width] of the image in pixels, (..., 2).
        """
        raise NotImplementedError

    def infer_spec(self, input_spec: Spec) -> Spec:
        return check_resampling(input_spec).with_size((None, None), (self.least, self.least))

    def lower(self, image: Primitives, p: Params) -> None:
        image.resize(self.shape(p, image.size), self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        shape = self.shape(p, np.array(image.shape[-2:], np.float64)).astype(int).tolist()
        mode = InterpolationMode(self.interpolation)
        return F.resize(image, shape, mode, antialias=self.antialias)
