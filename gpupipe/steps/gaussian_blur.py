"""gaussian_blur: blur with a Gaussian of drawn width."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from gpupipe.augment.color_ops import explain_small
from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.step import Params, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.schema.field_types import ORDERED, Positive, Side, one_for_both, should_be

_KERNEL_FORMS = "one odd number, or [width, height], both odd"


def _check_odd(value: tuple[int, int]) -> tuple[int, int]:
    if not all(side % 2 for side in value):
        raise should_be(_KERNEL_FORMS)
    return value


KernelSize = Annotated[tuple[Side, Side], one_for_both(_KERNEL_FORMS), AfterValidator(_check_odd)]
Sigma = Annotated[
    tuple[Positive, Positive],
    one_for_both("one number above 0, or [min, max], both above 0"),
    ORDERED,
]


class GaussianBlur(ColorStep):
    """Blur with a Gaussian, as torchvision.transforms.v2.GaussianBlur.

    At its border the image is mirrored without repeating the last pixel. So it must have more than
    kernel_size // 2 pixels a side. The input must be an image of 1 or 3 channels in uint8, float16
    or float32.

    Attributes:
        kernel_size: The number of pixels that are averaged along x and y: one odd number, or
            [width, height].
        sigma: The standard deviation in pixels, drawn uniformly from [min, max]; or one number.
            The default is [0.1, 2.0].
    """

    kernel_size: KernelSize
    sigma: Sigma = (0.1, 2.0)

    example = {"kernel_size": 9, "sigma": [0.5, 4.0]}
    num_uniforms = 1
    op = "gaussian_blur"
    takes_any_values = True

    def sample(self, u: Uniforms) -> Sampled:
        """Return sigma: float64 (B,), in pixels."""
        return {"sigma": draw_between(self.sigma, u[:, 0])}

    def infer_color(self, input_spec: Spec) -> Spec:
        output_spec = super().infer_color(input_spec)
        if input_spec.size and (small := explain_small(self.kernel_size, input_spec.size)):
            raise StepIncompatibleError(f"{small}: write a smaller kernel_size")
        return output_spec

    def op_values(self, p: Params) -> tuple[Any, ...]:
        sigma = np.stack([p["sigma"]] * 2, -1)
        return np.broadcast_to(np.array(self.kernel_size, np.int32), sigma.shape), sigma
