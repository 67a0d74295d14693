"""grayscale: convert to the luma of the image."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from gpupipe.augment.color_ops import LUMA
from gpupipe.pipeline.spec_checks import check_picture
from gpupipe.pipeline.step import Params, Primitives, Spec, Step, StepIncompatibleError, of_any_size
from gpupipe.pipeline.tensors import in_float32
from gpupipe.schema.field_types import WHOLE


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
