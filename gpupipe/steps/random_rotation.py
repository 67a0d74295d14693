"""random_rotation: rotate by a random angle about the centre."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.pipeline.geometry import affine_inverse, draw_between
from gpupipe.pipeline.geometry_step import WarpingStep, torch_interpolation
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Uniforms
from gpupipe.pipeline.tensors import in_float32
from gpupipe.schema.field_types import Degrees, Point

_DECIMALS = 12
"""The decimals to which sines and cosines are rounded before `expand` rounds sizes up. Otherwise
the computed cosine of 90 degrees, 6e-17, would add a row of pixels.
"""


class RandomRotation(WarpingStep):
    """Rotate by a random angle, as torchvision.transforms.v2.RandomRotation.

    The input must be an image of 1 to 4 channels in uint8, float16 or float32.

    Attributes:
        degrees: The angle, counter-clockwise: one number a for [-a, a], or [min, max]. In
            degrees, drawn uniformly.
        interpolation: "nearest" (the default) or "bilinear".
        expand: Enlarge the output so that it holds the whole rotated image. Output sizes then
            differ between samples. The default is false.
        center: [x, y] of the fixed point in pixels from the top left corner. The default is the
            centre of the image.
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is 0. Masks get 0; {image: ..., mask: ...} changes that.
    """

    degrees: Degrees
    expand: bool = False
    center: Point | None = None

    example = {"degrees": 45}
    num_uniforms = 1

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the angle of each sample.

        Returns:
            angle: (B,), in degrees.
            linear: (B, 2, 2), the linear part of the inverse matrix.
            extent: (B, 2, 2), the absolute values of `linear`, for `expand`.
            quarter_turn: (B,), 1 for multiples of 90 degrees, else 0. For these torchvision's
                `expand` swaps the sides and does not measure the corners.
        """
        angle = draw_between(self.degrees, u[:, 0])
        zero = np.zeros_like(angle)
        linear = affine_inverse(-angle, zero + 1.0, zero, zero)
        extent = np.abs(linear).round(_DECIMALS)
        quarter_turn = (extent.max((1, 2)) == 1.0).astype(np.float64)
        return {"angle": angle, "linear": linear, "extent": extent, "quarter_turn": quarter_turn}

    def infer_spec(self, input_spec: Spec) -> Spec:
        filled = super().infer_spec(input_spec)
        return filled.with_size((None, None), filled.at_least) if self.expand else filled

    def expanded(self, p: Params, width_height: Any) -> Any:
        """Return the [width, height] in pixels of an output that holds the whole rotated image.

        The formula is torchvision's _compute_affine_output_size.
        """
        half = width_height / 2.0
        reach = (p["extent"] * half[..., None, :]).sum(-1)
        around = np.ceil(half + reach) - np.floor(half - reach)
        return np.where(p["quarter_turn"][..., None] > 0, reach * 2.0, around)

    def lower(self, image: Primitives, p: Params) -> None:
        size = image.width_height
        center = np.array(self.center) if self.center else size / 2.0
        if not self.expand:
            image.warp(p["linear"], center, center, self.interpolation, self.fill)
            return
        expanded = self.expanded(p, size)
        image.warp(
            p["linear"],
            center,
            center + (expanded - size) / 2.0,
            self.interpolation,
            self.fill,
            expanded[..., ::-1],
        )

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        mode = torch_interpolation(self.interpolation)
        center = list(self.center) if self.center else None
        how = (float(p["angle"]), mode, self.expand, center, list(self.fill))
        return in_float32(image, lambda pixels: F.rotate(pixels, *how))
