"""random_solarize: invert the brightest values with a given probability."""

from __future__ import annotations

from gpupipe.augment.color_step import RandomColorStep
from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.schema.field_types import Finite


class RandomSolarize(RandomColorStep):
    """Invert values from a threshold on at random, as torchvision.transforms.v2.RandomSolarize.

    The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        threshold: Values of at least this are inverted. At most 255 for uint8, and 1 for floats.
        p: The probability that the image is solarized, 0 to 1. The default is 0.5.
    """

    threshold: Finite

    op = "solarize"

    example = {"threshold": 128}

    def infer_color(self, input_spec: Spec) -> Spec:
        output_spec = super().infer_color(input_spec)
        largest = 255 if input_spec.dtype == "uint8" else 1
        if self.threshold > largest:
            raise StepIncompatibleError(
                f"threshold is {self.threshold:.15g}, but {input_spec.dtype} holds 0 to {largest}: "
                "write a number between them"
            )
        return output_spec
