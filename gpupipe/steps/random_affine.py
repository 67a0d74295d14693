"""random_affine: rotate, translate, scale and shear about the centre."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from gpupipe.pipeline.geometry import affine_inverse, draw_between
from gpupipe.pipeline.geometry_step import WarpingStep, torch_interpolation
from gpupipe.pipeline.step import Params, Primitives, Sampled, Uniforms
from gpupipe.pipeline.tensors import in_float32
from gpupipe.schema.field_types import (
    ORDERED,
    Degrees,
    Finite,
    Point,
    PositiveRange,
    Shares,
    check_list,
    is_number,
    should_be,
)


def _shear(value: Any) -> Any:
    """Expand torchvision's short forms to [min x, max x, min y, max y].

    A number a means x in [-a, a], and [a, b] means x in [a, b]. Only four numbers shear along y.
    """
    expected = (
        "a number a of at least 0 for x in [-a, a], [a, b] for x, or [a, b, c, d] for x in "
        "[a, b] and y in [c, d]"
    )
    if is_number(value) and value < 0:
        raise should_be(expected)
    value = [-value, value] if is_number(value) else check_list(value, (2, 4), expected)
    return [*value, 0.0, 0.0][:4]


Shear = Annotated[tuple[Finite, Finite, Finite, Finite], BeforeValidator(_shear), ORDERED]


class RandomAffine(WarpingStep):
    """Apply a random affine transform, as torchvision.transforms.v2.RandomAffine.

    Each parameter is drawn uniformly from its range. The output has the size of the input. The
    input must be an image of 1 to 4 channels in uint8, float16 or float32.

    Attributes:
        degrees: The angle, clockwise: one number a for [-a, a], or [min, max]. In degrees.
        translate: The largest shift as fractions of [width, height], each 0 to 1. The shift is
            rounded to whole pixels. The default is no shift.
        scale: [min, max] factor of size, both above 0. The default is no scaling.
        shear: The shear angle in degrees: a number a, [a, b], or [a, b, c, d]. A number a means x
            in [-a, a]; [a, b] means x in [a, b]; [a, b, c, d] means x in [a, b] and y in [c, d].
            The default is no shear.
        interpolation: "nearest" (the default) or "bilinear".
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is 0. Masks get 0; {image: ..., mask: ...} changes that.
        center: [x, y] of the fixed point in pixels from the top left corner. The default is the
            centre of the image.
    """

    degrees: Degrees
    translate: Shares | None = None
    scale: PositiveRange | None = None
    shear: Shear | None = None
    center: Point | None = None

    example = {"degrees": 30, "translate": [0.1, 0.1], "scale": [0.7, 1.3]}
    num_uniforms = 6

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the transform of each sample.

        Returns:
            angle: (B,), in degrees.
            shear: (B, 2), [x, y] in degrees.
            scale: (B,).
            translate: (B, 2), [x, y] as fractions of the size, -1 to 1.
            linear: (B, 2, 2), the linear part of the inverse matrix, from angle, scale and shear.
        """
        angle = draw_between(self.degrees, u[:, 0])
        reach = np.array(self.translate or (0.0, 0.0))
        translate = (2.0 * u[:, 1:3] - 1.0) * reach
        scale = draw_between(self.scale or (1.0, 1.0), u[:, 3])
        low_x, high_x, low_y, high_y = self.shear or (0.0, 0.0, 0.0, 0.0)
        shear = draw_between((np.array([low_x, low_y]), np.array([high_x, high_y])), u[:, 4:])
        linear = affine_inverse(angle, scale, shear[:, 0], shear[:, 1])
        return {
            "angle": angle,
            "translate": translate,
            "scale": scale,
            "shear": shear,
            "linear": linear,
        }

    def shift(self, p: Params, width_height: Any) -> Any:
        """Return the shift [x, y] in whole pixels."""
        return np.rint(p["translate"] * width_height)

    def lower(self, image: Primitives, p: Params) -> None:
        size = image.width_height
        center = np.array(self.center) if self.center else size / 2.0
        shift = self.shift(p, size) if self.translate else np.zeros(2)
        image.warp(p["linear"], center, center + shift, self.interpolation, self.fill)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        shift = self.shift(p, np.array(image.shape[:-3:-1], np.float64)).astype(int).tolist()
        mode = torch_interpolation(self.interpolation)
        center = list(self.center) if self.center else None
        how = (
            float(p["angle"]),
            shift,
            float(p["scale"]),
            p["shear"].tolist(),
            mode,
            list(self.fill),
            center,
        )
        return in_float32(image, lambda pixels: F.affine(pixels, *how))
