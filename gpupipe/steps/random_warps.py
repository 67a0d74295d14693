"""random_affine, random_perspective and random_rotation: move pixels by a matrix that is drawn."""

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from gpupipe.pipeline.geometry import affine_inverse, draw_between, perspective_matrix
from gpupipe.pipeline.geometry_step import WarpingStep, torch_interpolation
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Uniforms
from gpupipe.pipeline.tensors import in_float32
from gpupipe.schema.field_types import (
    ORDERED,
    Degrees,
    Finite,
    Point,
    PositiveRange,
    Probability,
    Resampling,
    Shares,
    check_list,
    is_number,
    should_be,
)

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
"""Top-left, top-right, bottom-right, bottom-left, each [x, y]; 1 is the right or bottom end."""
_PER_PIXEL = np.float32(1e4)
"""Before `expand` rounds the ends of the canvas to whole pixels, torchvision cuts off all beyond
1 / _PER_PIXEL pixels: so that the cosine of 90 degrees, computed as 6e-17, adds no row.
"""


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
            A dict of float64 arrays for B samples:
            `angle`: (B,), in degrees.
            `shear`: (B, 2), [x, y] in degrees.
            `scale`: (B,), the factor of size.
            `translate`: (B, 2), [x, y] as fractions of the image's size, -1 to 1.
            `linear`: (B, 2, 2), the linear part of the inverse matrix, from angle, scale and shear.
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
        """Return the shift [x, y] of each sample in whole pixels."""
        return np.rint(p["translate"] * width_height)

    def lower(self, image: Primitives, p: Params) -> None:
        size = image.width_height
        center = np.array(self.center) if self.center else size / 2.0
        shift = self.shift(p, size) if self.translate else np.zeros(2)
        image.warp(p["linear"], center, center + shift, self.interpolation, self.fill)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        shift = self.shift(p, np.array(image.shape[:-3:-1], np.float64)).astype(int).tolist()
        angle, scale, shear = float(p["angle"]), float(p["scale"]), p["shear"].tolist()
        mode, fill = torch_interpolation(self.interpolation), list(self.fill)
        center = list(self.center) if self.center else None
        how = (angle, shift, scale, shear, mode, fill, center)
        return in_float32(image, lambda pixels: F.affine(pixels, *how))


class RandomPerspective(WarpingStep):
    """Apply a random perspective transform, as torchvision.transforms.v2.RandomPerspective.

    Each corner moves towards the centre by whole pixels. If three corners come to lie on one line,
    the image is left alone. The samples that are left alone cost no time. The input must be an
    image of 1 to 4 channels in uint8, float16 or float32.

    Attributes:
        distortion_scale: The largest move of a corner as a fraction of half the image's width and
            height, 0 to 1. The default is 0.5.
        p: The probability of a transform, 0 to 1. The default is 0.5.
        interpolation: "nearest" or "bilinear" (the default).
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is 0. Masks get 0; {image: ..., mask: ...} changes that.
    """

    distortion_scale: Probability = 0.5
    p: Probability = 0.5
    interpolation: Resampling = "bilinear"

    num_uniforms = 9

    def sample(self, u: Uniforms) -> Sampled:
        """Draw which samples are transformed, and how far their corners move.

        Returns:
            A dict of arrays for B samples:
            `runs`: int32 (B,), 1 for the samples that are transformed, else 0.
            `moves`: float64 (B, 4, 2), [x, y] for the top-left, top-right, bottom-right and
                bottom-left corner. Each number says where in its range the corner comes to lie:
                from 0, the left or top end of the range, to 1, which is excluded.
        """
        return {"runs": (u[:, 0] < self.p).astype(np.int32), "moves": u[:, 1:].reshape(-1, 4, 2)}

    def corners(self, p: Params, width_height: Any) -> tuple[Any, Any]:
        """Return two arrays, (..., 4, 2): the image's corners, and their positions in the output.

        Each corner is [x, y] in pixels. The formula is that of torchvision's make_params.
        """
        bounds = np.floor(self.distortion_scale * np.floor(width_height / 2.0)) + 1.0
        start = _CORNERS * (width_height - 1.0)[..., None, :]
        end = _CORNERS * (width_height - bounds)[..., None, :]
        return start, end + np.floor(p["moves"] * bounds[..., None, :])

    def lower(self, image: Primitives, p: Params) -> None:
        def run(part: Primitives) -> None:
            matrix = perspective_matrix(*self.corners(p, part.width_height))
            part.perspective(matrix, self.interpolation, self.fill)

        image.switch(p["runs"], [lambda part: None, run])

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        if not p["runs"]:
            return image
        width_height = np.array(image.shape[:-3:-1], np.float64)
        matrix = perspective_matrix(*self.corners(p, width_height))
        coefficients = matrix.astype(np.float32).ravel()[:8].tolist()
        mode = torch_interpolation(self.interpolation)
        how = (None, None, mode, list(self.fill), coefficients)
        return in_float32(image, lambda pixels: F.perspective(pixels, *how))


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
            A dict of float64 arrays for B samples:
            `angle`: (B,), in degrees.
            `linear`: (B, 2, 2), the linear part of the inverse matrix.
            `quarter_turn`: (B,), 1 for multiples of 90 degrees, else 0.
        """
        angle = draw_between(self.degrees, u[:, 0])
        zero = np.zeros_like(angle)
        linear = affine_inverse(-angle, zero + 1.0, zero, zero)
        quarter_turn = (angle % 90.0 == 0.0).astype(np.float64)
        return {"angle": angle, "linear": linear, "quarter_turn": quarter_turn}

    def infer_spec(self, input_spec: Spec) -> Spec:
        filled = super().infer_spec(input_spec)
        return filled.with_size((None, None), filled.at_least) if self.expand else filled

    def expanded(self, p: Params, width_height: Any) -> Any:
        """Return the [width, height] in pixels of an output that holds the whole rotated image.

        It is torchvision's _compute_affine_output_size, in float32 as there: the sizes are equal
        even if a corner comes to lie near the border of two pixels. Around the image's own centre,
        multiples of 90 degrees swap or keep the sides.
        """
        half, linear = width_height / 2.0, p["linear"].astype(np.float32)
        center = np.array(self.center) - half if self.center else np.zeros_like(half)
        moved = center - (p["linear"] * center[..., None, :]).sum(-1)
        corners = ((_CORNERS * 2.0 - 1.0) * half[..., None, :]).astype(np.float32)
        corners = (linear[..., None, :, :] * corners[..., None, :]).sum(-1)
        corners += moved[..., None, :].astype(np.float32)
        ends = (corners.max(-2), corners.min(-2))
        high, low = (np.trunc((n + np.float32(half)) * _PER_PIXEL) / _PER_PIXEL for n in ends)
        around = (np.ceil(high) - np.floor(low)).astype(np.float64)
        if self.center:
            return around
        swaps = np.abs(p["linear"][..., :1, 1]) > 0.5
        turned = np.where(swaps, width_height[..., ::-1], width_height)
        return np.where(p["quarter_turn"][..., None] > 0, turned, around)

    def lower(self, image: Primitives, p: Params) -> None:
        size = image.width_height
        center = np.array(self.center) if self.center else size / 2.0
        output, shape = center, None
        if self.expand:
            expanded = self.expanded(p, size)
            output, shape = center + (expanded - size) / 2.0, expanded[..., ::-1]
        image.warp(p["linear"], center, output, self.interpolation, self.fill, shape)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        mode = torch_interpolation(self.interpolation)
        center = list(self.center) if self.center else None
        how = (float(p["angle"]), mode, self.expand, center, list(self.fill))
        return in_float32(image, lambda pixels: F.rotate(pixels, *how))
