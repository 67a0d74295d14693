"""coarse_dropout: replace several random windows of the image by one value."""

from typing import Annotated, Any, Self

import numpy as np
from pydantic import AfterValidator, Field

from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.spec_checks import check_decoded, erase_with
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.runtime.memory import to_device
from gpupipe.schema.field_types import (
    ORDERED,
    WHOLE,
    AnyFill,
    FillByKind,
    NotNegative,
    Probability,
    should_be,
    two_numbers,
)

_MAX_HOLES = 1000
_Count = Annotated[int, Field(ge=1, le=_MAX_HOLES), WHOLE]


def _check_sides(sides: tuple[float, float]) -> tuple[float, float]:
    if sides[1] >= 1 and not all(n.is_integer() for n in sides):
        raise should_be("[min, max]: two shares of the side from 0 to below 1, or two whole pixels")
    return sides


_Sides = Annotated[
    tuple[NotNegative, NotNegative],
    two_numbers("[min, max], two shares of the side or two whole numbers of pixels"),
    ORDERED,
    AfterValidator(_check_sides),
]


class CoarseDropout(Step):
    """Replace random windows, called holes, by one value, as albumentations.CoarseDropout.

    Holes may overlap. Masks are left alone, unless `fill` names their value. Boxes and points stay
    as they are. The input must be an image of 1 to 4 channels in uint8, float16 or float32.

    Attributes:
        num_holes_range: The number of holes, [min, max], both at least 1. Drawn uniformly. The
            default is [1, 2].
        hole_height_range: The height of a hole, [min, max]: two shares of the image's height below
            1, or two whole numbers of pixels. Each hole has its own, drawn uniformly; none is
            larger than the image. The default is [0.1, 0.2].
        hole_width_range: The width of a hole, in the same way. The default is [0.1, 0.2].
        fill: The value inside the holes, in units of the step's input: one number, or one per
            channel. The default is 0. {image: ..., mask: ...} also fills masks.
        p: The probability that an image gets holes, 0 to 1. The default is 0.5.
    """

    num_holes_range: Annotated[
        tuple[_Count, _Count], two_numbers("[min, max], both whole and at least 1"), ORDERED
    ] = (1, 2)
    hole_height_range: _Sides = (0.1, 0.2)
    hole_width_range: _Sides = (0.1, 0.2)
    fill: AnyFill = (0.0,)
    p: Probability = 0.5

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws that one sample needs."""
        return 2 + 4 * self.num_holes_range[1]

    def sample(self, u: Uniforms) -> Sampled:
        """Draw how many holes each sample gets, and their sizes and positions.

        Returns:
            A dict of arrays for B samples and N holes, the largest number:
            `count`: int32 (B,), the number of holes of a sample, 0 to N.
            `sides`: float64 (B, N, 2), draws in [0, 1) for the height and width of each hole.
            `position`: float64 (B, N, 2), [top, left] as fractions of the free space, in [0, 1).
        """
        low, high = self.num_holes_range
        counts = np.floor(draw_between((low, high + 1), u[:, 1]))
        holes = u[:, 2:].reshape(len(u), high, 4)
        return {
            "count": np.where(u[:, 0] < self.p, counts, 0).astype(np.int32),
            "sides": holes[..., :2],
            "position": holes[..., 2:],
        }

    def adapt_to_mask(self) -> Self:
        """Return a copy for masks: with the fill of masks, or one that leaves them alone."""
        if isinstance(self.fill, FillByKind):
            return self.model_copy(update={"fill": self.fill.mask})
        return self.model_copy(update={"p": 0.0})

    def infer_spec(self, input_spec: Spec) -> Spec:
        if not self.p:
            return check_decoded(input_spec)
        return erase_with(self.fill, input_spec, "fill")

    def holes(self, p: Params, size: Any) -> tuple[Any, Any]:
        """Return [top, left] and [height, width] of the holes in pixels, (..., N, 2) each.

        A hole that the sample does not get has no pixels. The formula is that of Albumentations.

        Args:
            p: The arrays that `sample` returned.
            size: [height, width] of the image in pixels, (..., 2).
        """
        room = size[..., None, :]
        ranges = (self.hole_height_range, self.hole_width_range)
        parts = [
            _draw_side(bounds, p["sides"][..., n], room[..., n]) for n, bounds in enumerate(ranges)
        ]
        is_made = np.arange(p["sides"].shape[-2]) < p["count"][..., None]
        shape = np.where(is_made[..., None], np.stack(parts, -1), 0.0)
        return np.floor(p["position"] * (room - shape + 1.0)), shape

    def lower(self, image: Primitives, p: Params) -> None:
        if self.p:
            anchors, shapes = self.holes(p, image.size)
            for n in range(self.num_holes_range[1]):
                image.erase(anchors[:, n], shapes[:, n], self.fill)

    def torch(self, image: Any, p: Params) -> Any:
        import torch

        if not p["count"]:
            return image
        output = image.clone()
        value = to_device(torch.tensor(self.fill).to(image.dtype)[:, None, None], image.device)
        anchors, shapes = self.holes(p, np.array(image.shape[-2:], np.float64))
        for (top, left), (height, width) in zip(
            anchors.astype(int).tolist(), shapes.astype(int).tolist(), strict=True
        ):
            output[..., top : top + height, left : left + width] = value
        return output


def _draw_side(bounds: tuple[float, float], u: Any, length: Any) -> Any:
    """Return sides of holes in whole pixels, at most `length`."""
    low, high = bounds
    if high < 1:
        return np.floor(length * draw_between(bounds, u))
    low, high = np.minimum(low, length), np.minimum(high, length)
    return np.floor(draw_between((low, high + 1.0), u))
