"""grayscale and random_grayscale convert to luma; rgb makes three channels of one."""

from typing import Annotated, Any, Literal

from gpupipe.augment.color_ops import LUMA
from gpupipe.augment.color_step import ColorStep, RandomColorStep, apply_where
from gpupipe.pipeline.spec_checks import check_picture, count_channels
from gpupipe.pipeline.step import Params, Primitives, Spec, Step, StepIncompatibleError, of_any_size
from gpupipe.pipeline.tensors import in_float32
from gpupipe.schema.field_types import WHOLE, Probability


class Grayscale(Step):
    """Convert RGB to luma, as torchvision.transforms.v2.Grayscale.

    The luma is 0.2989 R + 0.587 G + 0.114 B. An image of one channel keeps its values.

    Attributes:
        num_output_channels: The number of channels: 1, or 3 equal ones. The default is 1.
    """

    num_output_channels: Annotated[Literal[1, 3], WHOLE] = 1

    example = {"num_output_channels": 3}

    def infer_spec(self, input_spec: Spec) -> Spec:
        if "C" not in check_picture(input_spec).layout or input_spec.channels not in (None, 1, 3):
            raise StepIncompatibleError(
                f"it works on 1 or 3 channels, but gets {input_spec} in the layout "
                f"{input_spec.layout}: leave it out"
            )
        return input_spec.with_channels(self.num_output_channels)

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec:
        return of_any_size(input_spec).with_channels(None)

    def lower(self, image: Primitives, p: Params) -> None:
        weights = LUMA if image.spec.channels == 3 else (1.0,)
        if (image.spec.channels, self.num_output_channels) != (1, 1):
            image.color_matrix([weights] * self.num_output_channels)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return in_float32(
            image, lambda pixels: F.rgb_to_grayscale(pixels, self.num_output_channels)
        )


class RandomGrayscale(RandomColorStep):
    """Convert RGB to luma at random, as torchvision.transforms.v2.RandomGrayscale.

    The luma is 0.2989 R + 0.587 G + 0.114 B, in all three channels. An image of one channel keeps
    its values. The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        p: The probability of the conversion, 0 to 1. The default is 0.1.
    """

    p: Probability = 0.1

    example = {"p": 0.5}

    def lower_color(self, image: Primitives, p: Params) -> None:
        if count_channels(image.spec) == 3:
            apply_where(p["runs"], image, lambda part: part.color_matrix([LUMA] * 3))

    def torch_color(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.rgb_to_grayscale(image, image.shape[-3]) if p["runs"] else image


class Rgb(ColorStep):
    """Repeat the channel of a gray image three times, as torchvision.transforms.v2.RGB.

    An image of three channels keeps them. The input must be an image of 1 or 3 channels in uint8,
    float16 or float32. The step has no parameters. For image files it is not needed: `decode` with
    `mode: rgb` always makes three channels.
    """

    takes_any_values = True

    def infer_color(self, input_spec: Spec) -> Spec:
        output_spec = super().infer_color(input_spec)
        if "C" not in input_spec.layout:
            raise StepIncompatibleError(
                f"it makes channels, but the array has no axis for them (layout "
                f"{input_spec.layout}): leave it out, or store the data in the layout HWC"
            )
        return output_spec.with_channels(3)

    def lower_color(self, image: Primitives, p: Params) -> None:
        if image.spec.channels == 1:
            image.color_matrix([[1.0]] * 3)

    def torch_color(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.grayscale_to_rgb(image)
