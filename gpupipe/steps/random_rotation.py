"""random_rotation: by an angle, about the centre."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.pipeline.axes import in_float32, picture
from gpupipe.pipeline.geometry import affine_inverse
from gpupipe.pipeline.step import DaliImage, Params, Spec, Step, one_a_channel
from gpupipe.schema.field_types import Degrees, Fill, Point, Resampling

_DECIMALS = 12
"""Kept of sines and cosines where `expand` rounds up: the cosine of 90 degrees is 6e-17, and must
not cost a row of pixels.
"""


class RandomRotation(Step):
    """torchvision.transforms.v2.RandomRotation.

    degrees: the angle, counter-clockwise: one number a for [-a, a], or [least, most]. expand: make
    the image large enough to hold all of the turned one (it then differs in size from sample to
    sample). center: [x, y] in pixels from the top left corner; the image's centre by default. fill:
    what is outside the image, 0 to 255: a number, or one a channel.
    """

    degrees: Degrees
    interpolation: Resampling = "nearest"
    expand: bool = False
    center: Point | None = None
    fill: Fill = (0.0,)

    lanes: ClassVar[int] = 1
    interpolates: ClassVar[bool] = True

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """angle (B,) in degrees; linear (B, 2, 2), the inverse matrix; for `expand`, extent, its
        absolute values, and quarter_turn (B,), 1 for multiples of 90 degrees, where torchvision
        swaps the sides instead of measuring.
        """
        angle = self.degrees[0] + u[:, 0] * (self.degrees[1] - self.degrees[0])
        zero = np.zeros_like(angle)
        linear = affine_inverse(-angle, zero + 1.0, zero, zero)
        extent = np.abs(linear).round(_DECIMALS)
        quarter_turn = (extent.max((1, 2)) == 1.0).astype(np.float64)
        return {"angle": angle, "linear": linear, "extent": extent, "quarter_turn": quarter_turn}

    def spec(self, given: Spec) -> Spec:
        one_a_channel("fill", self.fill, picture(given))
        return given.sized((None, None), given.at_least) if self.expand else given

    def expanded(self, p: Params, width_height: Any) -> Any:
        """[width, height] of what holds the whole turned image (torchvision's
        _compute_affine_output_size).
        """
        half = width_height / 2.0
        reach = (p["extent"] * half[..., None, :]).sum(-1)
        around = np.ceil(half + reach) - np.floor(half - reach)
        return np.where(p["quarter_turn"][..., None] > 0, reach * 2.0, around)

    def dali(self, image: DaliImage, p: Params) -> None:
        size = image.width_height
        center = np.array(self.center) if self.center else size / 2.0
        if not self.expand:
            image.warp(p["linear"], center, center, self.interpolation, self.fill)
            return
        grown = self.expanded(p, size)
        image.warp(
            p["linear"],
            center,
            center + (grown - size) / 2.0,
            self.interpolation,
            self.fill,
            grown[..., ::-1],
        )

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        mode = InterpolationMode(self.interpolation)
        center = list(self.center) if self.center else None
        how = (float(p["angle"]), mode, self.expand, center, list(self.fill))
        return in_float32(image, lambda pixels: F.rotate(pixels, *how))
