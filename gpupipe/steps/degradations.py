"""Steps that make images worse: gaussian_blur, gaussian_noise and jpeg."""

import io
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from gpupipe.augment import noise
from gpupipe.augment.color_ops import explain_small
from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.spec_checks import add_fill, check_color
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.runtime.memory import to_device
from gpupipe.schema.field_types import (
    ORDERED,
    WHOLE,
    Finite,
    NotNegative,
    Positive,
    Side,
    check_list,
    is_number,
    one_for_both,
    should_be,
)

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

    At its border the image is mirrored without repeating the last pixel. So each side of the image
    must have more than kernel_size // 2 pixels. The input must be an image of 1 or 3 channels in
    uint8, float16 or float32.

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
        """Return a dict: `sigma`, float64 (B,), in pixels, for each of B samples."""
        return {"sigma": draw_between(self.sigma, u[:, 0])}

    def infer_color(self, input_spec: Spec) -> Spec:
        output_spec = super().infer_color(input_spec)
        if input_spec.size and (small := explain_small(self.kernel_size, input_spec.size)):
            raise StepIncompatibleError(f"{small}: write a smaller kernel_size")
        return output_spec

    def op_values(self, p: Params) -> tuple[Any, ...]:
        sigma = np.stack([p["sigma"]] * 2, -1)
        return np.broadcast_to(np.array(self.kernel_size, np.int32), sigma.shape), sigma


class GaussianNoise(ColorStep):
    """Add noise to each channel of each pixel, as torchvision.transforms.v2.GaussianNoise.

    The input must be an image of 1 or 3 channels in uint8, float16 or float32. The noise is
    made on the CPU on every engine: DALI is fed with it.

    Attributes:
        mean: The mean of the noise, in units of the dtype's range: 1 stands for 255 levels of
            uint8. The default is 0.
        sigma: The standard deviation of the noise in the same unit, 0 or more. The default is 0.1.
        clip: Whether results are clamped to the range of the dtype. The default is true. uint8
            requires it.
    """

    mean: Finite = 0.0
    sigma: NotNegative = 0.1
    clip: bool = True

    num_uniforms = 1

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `seed`, int64 (B,), the seed of the noise of each of B samples."""
        return {"seed": noise.draw_seeds(u[:, 0])}

    def infer_color(self, input_spec: Spec) -> Spec:
        check_color(input_spec, any_values=not self.clip)
        if input_spec.dtype == "uint8" and not self.clip:
            raise StepIncompatibleError(
                "levels of uint8 wrap around without clip: leave 'clip' out, or write 'to_dtype: "
                "{dtype: float32, scale: true}' before it"
            )
        return input_spec if self.clip else add_fill(noise.ANY_NUMBER, input_spec)

    def lower_color(self, image: Primitives, p: Params) -> None:
        image.add_noise(p["seed"], self.mean, self.sigma, self.clip)

    def torch_color(self, image: Any, p: Params) -> Any:
        import torch

        dtype = "uint8" if image.dtype == torch.uint8 else "float32"
        shape = (*image.shape[1:], image.shape[0])
        values = noise.make_noise(p["seed"], shape, dtype, self.mean, self.sigma)
        noisy = image + to_device(torch.from_numpy(values).permute(2, 0, 1), image.device)
        if dtype == "uint8":
            return noisy.clamp_(0, 255).to(torch.uint8)
        return noisy.clamp_(0, 1) if self.clip else noisy


Percent = Annotated[int, Field(ge=1, le=100), WHOLE]
_QUALITY_FORMS = "a whole number from 1 to 100, or [min, max]"


def _both_qualities(value: Any) -> Any:
    return [value] * 2 if is_number(value) else check_list(value, (2,), _QUALITY_FORMS)


Quality = Annotated[tuple[Percent, Percent], BeforeValidator(_both_qualities), ORDERED]


class Jpeg(ColorStep):
    """Compress as JPEG and decode again, as torchvision.transforms.v2.JPEG.

    The input must be an image of 1 or 3 channels of uint8. On a CPU the pixels are those of
    torchvision. On a GPU, DALI simulates the codec, and pixels differ from those of a CPU.

    Attributes:
        quality: The quality, 1 to 100: one number, or [min, max], from which a whole number is
            drawn; both ends are possible.
    """

    quality: Quality

    example = {"quality": [2, 30]}
    num_uniforms = 1
    op = "jpeg"

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `quality`, int32 (B,), the JPEG quality for each of B samples."""
        low, high = self.quality
        return {"quality": (low + np.floor(u[:, 0] * (high - low + 1))).astype(np.int32)}

    def torch_color(self, image: Any, p: Params) -> Any:
        """Compress with Pillow and decode again. The pixels are those of torchvision.

        torchvision's own JPEG encoder is not used, since it is deprecated.
        """
        import torch
        from PIL import Image

        pixels = image.permute(1, 2, 0).cpu().numpy()
        encoded = io.BytesIO()
        picture = Image.fromarray(pixels[..., 0] if len(image) == 1 else pixels)
        picture.save(encoded, "JPEG", quality=int(p["quality"]))
        decoded = np.array(Image.open(encoded)).reshape(pixels.shape)
        return torch.from_numpy(decoded).permute(2, 0, 1).to(image.device)
