"""random_vertical_flip: swap top and bottom with a given probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.pipeline.spec_checks import check_axis
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.pipeline.tensors import flip
from gpupipe.schema.field_types import Probability


class RandomVerticalFlip(Step):
    """Swap top and bottom at random, as torchvision.transforms.v2.RandomVerticalFlip.

    Attributes:
        p: The probability of a flip, 0 to 1. The default is 0.5.
    """

    p: Probability = 0.5

    num_uniforms = 1

    def sample(self, u: Uniforms) -> Sampled:
        """Return flip: int32 (B,), 1 for the samples to mirror, else 0."""
        return {"flip": (u[:, 0] < self.p).astype(np.int32)}

    def infer_spec(self, input_spec: Spec) -> Spec:
        return check_axis("H", input_spec)

    def lower(self, image: Primitives, p: Params) -> None:
        image.flip(vertical=p["flip"])

    def torch(self, image: Any, p: Params) -> Any:
        return flip(image, [-2]) if p["flip"] else image
