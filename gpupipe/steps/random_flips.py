"""random_horizontal_flip and random_vertical_flip: mirror images with a given probability."""

from typing import Any, ClassVar

import numpy as np

from gpupipe.pipeline.spec_checks import check_axis
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.pipeline.tensors import flip
from gpupipe.schema.field_types import Probability


class RandomFlip(Step):
    """The base of steps that flip images at random. A subclass sets `axis`: "H" or "W"."""

    p: Probability = 0.5

    num_uniforms = 1
    axis: ClassVar[str]

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `flip`, int32 (B,) for B samples: 1 to mirror the sample, else 0."""
        return {"flip": (u[:, 0] < self.p).astype(np.int32)}

    def infer_spec(self, input_spec: Spec) -> Spec:
        return check_axis(self.axis, input_spec)

    def lower(self, image: Primitives, p: Params) -> None:
        image.flip(**{"horizontal" if self.axis == "W" else "vertical": p["flip"]})

    def torch(self, image: Any, p: Params) -> Any:
        return flip(image, [-1 if self.axis == "W" else -2]) if p["flip"] else image


class RandomHorizontalFlip(RandomFlip):
    """Swap left and right at random, as torchvision.transforms.v2.RandomHorizontalFlip.

    Attributes:
        p: The probability of a flip, 0 to 1. The default is 0.5.
    """

    axis = "W"


class RandomVerticalFlip(RandomFlip):
    """Swap top and bottom at random, as torchvision.transforms.v2.RandomVerticalFlip.

    Attributes:
        p: The probability of a flip, 0 to 1. The default is 0.5.
    """

    axis = "H"
