"""gaussian_noise: add normally distributed noise to each channel of each pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment import noise
from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.spec_checks import add_fill, check_color
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.runtime.memory import to_device
from gpupipe.schema.field_types import Finite, NotNegative


class GaussianNoise(ColorStep):
    """Add noise to each channel of each pixel, as torchvision.transforms.v2.GaussianNoise.

    The input must be an image of 1 or 3 channels in uint8, float16 or float32, and all images must
    have one size. The noise is made on the CPU for every engine, 1.2 ms for 224x224x3; see
    augment/noise.py.

    Attributes:
        mean: The mean of the noise. 1 is the range of the dtype: 255 levels for uint8. The default
            is 0.
        sigma: The standard deviation of the noise in the same unit, 0 or more. The default is 0.1.
        clip: Whether results are clamped to the range of the dtype. The default is true. uint8
            requires it.
    """

    mean: Finite = 0.0
    sigma: NotNegative = 0.1
    clip: bool = True

    num_uniforms = 1
    speed_advice = noise.SPEED_ADVICE

    def sample(self, u: Uniforms) -> Sampled:
        """Return seed: int64 (B,), the seed of each sample's noise."""
        return {"seed": noise.draw_seeds(u[:, 0])}

    def infer_color(self, input_spec: Spec) -> Spec:
        noise.shape_of_pixels(check_color(input_spec, any_values=not self.clip))
        if input_spec.dtype == "uint8" and not self.clip:
            raise StepIncompatibleError(
                "levels of uint8 wrap around without clip: leave 'clip' out, or write 'to_dtype: "
                "{dtype: float32, scale: true}' before it"
            )
        return input_spec if self.clip else add_fill(noise.ANY_NUMBER, input_spec)

    def values(self, seed: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return the noise for an image of `shape` (H, W, C): int16 for uint8, else float32."""
        unit = 255.0 if dtype == "uint8" else 1.0
        values = noise.normal_field(seed, shape)
        values *= np.float32(self.sigma * unit)
        values += np.float32(self.mean * unit)
        if dtype != "uint8":
            return values
        return np.clip(values, -255.0, 255.0, out=values).astype(np.int16)

    def lower_color(self, image: Primitives, p: Params) -> None:
        shape, dtype = noise.shape_of_pixels(image.spec), image.spec.dtype
        fields = noise.stack_fields(
            lambda n: self.values(p["seed"][n], shape, dtype),
            image.present,
            shape,
            "int16" if dtype == "uint8" else "float32",
        )
        image.add(fields, self.clip)

    def torch_color(self, image: Any, p: Params) -> Any:
        import torch

        dtype = "uint8" if image.dtype == torch.uint8 else "float32"
        shape = (*image.shape[1:], image.shape[0])
        values = torch.from_numpy(self.values(p["seed"], shape, dtype)).permute(2, 0, 1)
        noisy = image + to_device(values, image.device)
        if dtype == "uint8":
            return noisy.clamp_(0, 255).to(torch.uint8)
        return noisy.clamp_(0, 1) if self.clip else noisy
