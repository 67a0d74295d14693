"""rgb: make three channels of one."""

from __future__ import annotations

from typing import Any

from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.step import Params, Primitives, Spec, StepIncompatibleError


class Rgb(ColorStep):
    """Repeat the channel of a gray image three times, as torchvision.transforms.v2.RGB.

    An image of three channels keeps them. The input must be an image of 1 or 3 channels in uint8,
    float16 or float32. It has no parameters. For image files, `decode` with `mode: rgb` makes three
    channels of all.
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
