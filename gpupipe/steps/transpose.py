"""transpose: swap rows and columns at random."""

from typing import Any

import numpy as np

from gpupipe.pipeline.spec_checks import check_image, with_sides_swapped
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.schema.field_types import Probability


class Transpose(Step):
    """Swap rows and columns at random, as albumentations.Transpose.

    The top right corner becomes the bottom left one. Where p is not 0 or 1, and images are not
    square, their sizes differ afterwards, so a crop or a resize must follow.

    Attributes:
        p: The probability of the swap, 0 to 1. The default is 0.5.
    """

    p: Probability = 0.5

    num_uniforms = 1

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `swaps`, int32 (B,) for B samples: 1 to transpose the sample, else 0."""
        return {"swaps": (u[:, 0] < self.p).astype(np.int32)}

    def infer_spec(self, input_spec: Spec) -> Spec:
        return with_sides_swapped(check_image(input_spec), self.p)

    def lower(self, image: Primitives, p: Params) -> None:
        image.switch(p["swaps"], [lambda part: None, lambda part: part.transpose()])

    def torch(self, image: Any, p: Params) -> Any:
        return image.transpose(-2, -1) if p["swaps"] else image
