"""Steps that apply one function of color_ops.py at random.

They are random_adjust_sharpness, random_autocontrast, random_channel_permutation, random_equalize,
random_invert, random_posterize and random_solarize.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from gpupipe.augment.color_step import ColorStep, RandomColorStep
from gpupipe.pipeline.step import Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.schema.field_types import WHOLE, Finite, NotNegative


class RandomAdjustSharpness(RandomColorStep):
    """Sharpen or smooth at random, as torchvision.transforms.v2.RandomAdjustSharpness.

    The border of one pixel keeps its values. The input must be an image of 1 or 3 channels, of
    uint8 or of floats from 0 to 1.

    Attributes:
        sharpness_factor: 0 or more: 0 smooths, 1 changes nothing, 2 doubles the sharpness.
        p: The probability of the change, 0 to 1. The default is 0.5.
    """

    sharpness_factor: NotNegative

    op = "adjust_sharpness"

    example = {"sharpness_factor": 5}


class RandomAutocontrast(RandomColorStep):
    """Stretch each channel at random, as torchvision.transforms.v2.RandomAutocontrast.

    The darkest value of a channel becomes 0, and the brightest becomes 255, or 1 for floats. The
    input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        p: The probability of the change, 0 to 1. The default is 0.5.
    """

    op = "autocontrast"


class RandomChannelPermutation(ColorStep):
    """Put the channels in a random order, as torchvision.transforms.v2.RandomChannelPermutation.

    The six orders of three channels are equally probable. An image of one channel is left alone.
    The input must be an image of 1 or 3 channels in uint8, float16 or float32. The step has no
    parameters.
    """

    num_uniforms = 3
    op = "permute_channels"
    takes_any_values = True

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `permutation`, int32 (B, 3), the input channel for each output channel."""
        return {"permutation": np.argsort(u, axis=-1, kind="stable").astype(np.int32)}


class RandomEqualize(RandomColorStep):
    """Equalize the histogram of each channel, as torchvision.transforms.v2.RandomEqualize.

    The input must be an image of 1 or 3 channels of uint8. DALI on a CPU takes about twice the time
    of torchvision.

    Attributes:
        p: The probability that the image is equalized, 0 to 1. The default is 0.5.
    """

    op = "equalize"


class RandomInvert(RandomColorStep):
    """Invert the colours at random, as torchvision.transforms.v2.RandomInvert.

    The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        p: The probability of the inversion, 0 to 1. The default is 0.5.
    """

    op = "invert"


class RandomPosterize(RandomColorStep):
    """With probability p, keep only the highest bits of values, as torchvision's RandomPosterize.

    The input must be an image of 1 or 3 channels of uint8.

    Attributes:
        bits: The number of bits to keep in each channel, 0 to 8.
        p: The probability that the image is posterized, 0 to 1. The default is 0.5.
    """

    bits: Annotated[int, Field(ge=0, le=8), WHOLE]

    op = "posterize"

    example = {"bits": 2}


class RandomSolarize(RandomColorStep):
    """With probability p, invert high values, as torchvision.transforms.v2.RandomSolarize.

    The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        threshold: Values of at least `threshold` are inverted. It may be up to 255 for uint8, and
            up to 1 for floats.
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
