"""random_zoom_out: put the image at a random place on a larger canvas."""

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.spec_checks import add_fill, check_fill, check_plane
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.pipeline.tensors import cut
from gpupipe.schema.field_types import NUMBER, ORDERED, AnyFill, Probability, two_numbers

_Factor = Annotated[float, Field(ge=1, allow_inf_nan=False), NUMBER]


class RandomZoomOut(Step):
    """Put the image on a larger canvas at random, as torchvision.transforms.v2.RandomZoomOut.

    Output sizes differ between samples, so a crop or a resize must follow. The samples that are
    left alone cost no time.

    Attributes:
        fill: The value of the canvas: one number, or one per channel. The image's dtype must be
            able to hold it. The default is 0. Masks get 0; {image: ..., mask: ...} changes that.
        side_range: The canvas's width and height relative to the image's, [min, max], both at
            least 1. Drawn uniformly. The default is [1, 4].
        p: The probability of a larger canvas, 0 to 1. The default is 0.5.
    """

    fill: AnyFill = (0.0,)
    side_range: Annotated[
        tuple[_Factor, _Factor], two_numbers("[min, max], both at least 1"), ORDERED
    ] = (1.0, 4.0)
    p: Probability = 0.5

    num_uniforms = 4
    speed_advice = "a smaller canvas, side_range, costs less"

    def sample(self, u: Uniforms) -> Sampled:
        """Draw which samples get a canvas, its size, and the position of the image on it.

        Returns:
            A dict of arrays for B samples:
            `runs`: int32 (B,), 1 for the samples that get a canvas, else 0.
            `factor`: float64 (B, 1), the canvas's sides relative to the image's.
            `position`: float64 (B, 2), [top, left] of the image as fractions of the free space, in
                [0, 1).
        """
        return {
            "runs": (u[:, 0] < self.p).astype(np.int32),
            "factor": draw_between(self.side_range, u[:, 1:2]),
            "position": u[:, 2:],
        }

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_fill(self.fill, check_plane(input_spec))
        return add_fill(self.fill, input_spec).with_size((None, None), input_spec.at_least)

    def canvas(self, p: Params, size: Any) -> tuple[Any, Any]:
        """Return the canvas in pixels: [top, left] relative to the image, and [height, width].

        The formula is that of torchvision's make_params.

        Args:
            p: The arrays that `sample` returned.
            size: [height, width] of the image in pixels.
        """
        shape = np.floor(size * p["factor"])
        return -np.floor((shape - size) * p["position"]), shape

    def lower(self, image: Primitives, p: Params) -> None:
        def run(part: Primitives) -> None:
            part.crop(*self.canvas(p, part.size), self.fill)

        image.switch(p["runs"], [lambda part: None, run])

    def torch(self, image: Any, p: Params) -> Any:
        if not p["runs"]:
            return image
        return cut(image, *self.canvas(p, np.array(image.shape[-2:], np.float64)), self.fill)
