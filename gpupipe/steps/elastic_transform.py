"""elastic_transform: move each pixel by a smooth random displacement, see augment/elastic.py."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gpupipe.augment import noise
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.pipeline.geometry_step import WarpingStep, torch_interpolation
from gpupipe.pipeline.spec_checks import IMAGE_DTYPES, add_fill, check_color, check_per_channel
from gpupipe.pipeline.step import (
    Params,
    Primitives,
    Sampled,
    SampleIncompatibleError,
    Spec,
    StepIncompatibleError,
    Uniforms,
)
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
    image of 1 or 3 channels in uint8, float16 or float32. The displacements are made on the CPU on
    every engine: DALI is fed with them. DALI on the CPU has no operator that applies them: it calls
    torchvision, one image after another, which takes 1 ms more per image of 224x224 and holds
    Python's lock.

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
        "displacements are made on the CPU: transform fewer samples, inside random_apply, or take "
        "a smaller sigma"
    )

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `seed`, int64 (B,), the seed of the displacements of each of B samples."""
        return {"seed": noise.draw_seeds(u[:, 0])}

    @property
    def elastic(self) -> Elastic:
        """How displacements are drawn."""
        return Elastic(self.alpha, self.sigma)

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_per_channel("fill", self.fill, check_color(input_spec, IMAGE_DTYPES, any_values=True))
        if input_spec.size and (small := self.elastic.explain_small(np.array(input_spec.size))):
            raise StepIncompatibleError(small)
        return add_fill(self.fill, input_spec)

    def lower(self, image: Primitives, p: Params) -> None:
        sizes = np.broadcast_to(image.size, (len(image.present), 2))
        for size in sizes[image.present]:
            self._check_size(size)
        image.elastic(p["seed"], self.alpha, self.sigma, self.interpolation, self.fill)

    def torch(self, image: Any, p: Params) -> Any:
        import torch
        from torchvision.transforms.v2 import functional as F

        height, width = image.shape[-2:]
        self._check_size(np.array([height, width]))
        moves = torch.from_numpy(make_displacement(p["seed"], (height, width), self.elastic))[None]
        how = (
            to_device(moves, image.device),
            torch_interpolation(self.interpolation),
            list(self.fill),
        )
        return in_float32(image, lambda pixels: F.elastic(pixels, *how))

    def _check_size(self, size: NDArray[Any]) -> None:
        """Raise SampleIncompatibleError if an image of `size` is too small for the blur."""
        if small := self.elastic.explain_small(size):
            raise SampleIncompatibleError(small)
