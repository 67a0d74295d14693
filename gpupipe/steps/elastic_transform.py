"""elastic_transform: move each pixel by a smooth random displacement."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gpupipe.augment import noise
from gpupipe.augment.noise import kernel_size, make_displacement
from gpupipe.pipeline.geometry import describe_small
from gpupipe.pipeline.geometry_step import WarpingStep, torch_interpolation
from gpupipe.pipeline.spec_checks import IMAGE_DTYPES, add_fill, check_color, check_per_channel
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.pipeline.tensors import in_float32
from gpupipe.runtime.memory import to_device
from gpupipe.schema.field_types import NUMBER, Resampling, one_for_both, should_be


def _check_both_or_none(value: tuple[float, float]) -> tuple[float, float]:
    if (value[0] == 0) != (value[1] == 0):
        raise should_be("above 0 for both x and y, or 0 for both")
    return value


_Number = Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False), NUMBER]
_Pair = Annotated[tuple[_Number, _Number], one_for_both("one number of at least 0, or [x, y]")]


class ElasticTransform(WarpingStep):
    """Move each pixel at random, as torchvision.transforms.v2.ElasticTransform.

    Each pixel draws a displacement, and a blur makes neighbours move alike. The input must be an
    image of 1 or 3 channels in uint8, float16 or float32, and all images must have one size. The
    displacements are made on the CPU for all engines, 4 ms for 224x224. DALI on the CPU has no
    operator for them: it calls torchvision, one image after another, which takes 1 ms more each and
    holds Python's lock.

    Attributes:
        alpha: The strength in half pixels: one number, or [x, y]. Before the blur, a pixel moves by
            at most alpha / 2 pixels along each axis. The default is 50.
        sigma: The standard deviation of the blur in pixels: one number, or [x, y]; 0 for no blur.
            An image must have more than 4 sigma pixels a side. The default is 5.
        interpolation: "nearest" or "bilinear" (the default).
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is 0. Masks get 0; {image: ..., mask: ...} changes that.
    """

    alpha: _Pair = (50.0, 50.0)
    sigma: Annotated[_Pair, AfterValidator(_check_both_or_none)] = (5.0, 5.0)
    interpolation: Resampling = "bilinear"

    example = {"alpha": 150}
    num_uniforms = 1
    speed_advice = (
        "displacements are made on the CPU, 4 ms for 224x224: transform fewer samples, inside "
        "random_apply, or take a smaller sigma"
    )

    def sample(self, u: Uniforms) -> Sampled:
        """Return seed: int64 (B,), the seed of each sample's displacements."""
        return {"seed": noise.draw_seeds(u[:, 0])}

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_per_channel("fill", self.fill, check_color(input_spec, IMAGE_DTYPES, any_values=True))
        size = noise.shape_of_pixels(input_spec)[:2]
        needed = [max(kernel_size(s) for s in self.sigma) // 2 + 1] * 2
        if min(size) < needed[0]:
            raise StepIncompatibleError(
                f"{describe_small('the blur', size, needed)}: write a smaller sigma"
            )
        return add_fill(self.fill, input_spec)

    def displacement(self, seed: int, size: tuple[int, int]) -> Any:
        """Return the displacements of a sample, a tensor (1, H, W, 2); see make_displacement."""
        return make_displacement(seed, size, self.alpha, self.sigma)

    def lower(self, image: Primitives, p: Params) -> None:
        height, width, _ = noise.shape_of_pixels(image.spec)
        fields = noise.stack_fields(
            lambda n: self.displacement(p["seed"][n], (height, width))[0].numpy(),
            image.present,
            (height, width, 2),
        )
        reach = ceil(self.alpha[1] / 2.0) + 1, ceil(self.alpha[0] / 2.0) + 1
        image.remap(fields, reach, self.interpolation, self.fill)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        moves = to_device(self.displacement(p["seed"], image.shape[-2:]), image.device)
        how = moves, torch_interpolation(self.interpolation), list(self.fill)
        return in_float32(image, lambda pixels: F.elastic(pixels, *how))
