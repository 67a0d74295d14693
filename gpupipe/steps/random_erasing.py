"""random_erasing: replace a random window of the image by one value, or by noise."""

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator

from gpupipe.augment import noise
from gpupipe.pipeline.random_windows import choose_windows, draw_windows, take_first
from gpupipe.pipeline.spec_checks import add_fill, check_decoded, check_picture, erase_with
from gpupipe.pipeline.step import (
    Params,
    Primitives,
    Sampled,
    Spec,
    Step,
    StepIncompatibleError,
    Uniforms,
)
from gpupipe.runtime.memory import to_device
from gpupipe.schema.field_types import (
    ORDERED,
    PositiveRange,
    Probability,
    Value,
    should_be,
    two_numbers,
)

_TRIES = 10
RANDOM = "random"
"""The value of the parameter `value` that stands for noise."""
_SEED = 2 * _TRIES + 3
"""The column of the uniform draws from which the seed of the noise is drawn."""


def _numbers_or_random(value: Any) -> Any:
    if isinstance(value, str) and value != RANDOM:
        raise should_be(f"one number, a list with one for each channel, or '{RANDOM}'")
    return value


class RandomErasing(Step):
    """Replace a random window by one value or noise, as torchvision.transforms.v2.RandomErasing.

    Like torchvision, the step draws ten windows and takes the first whose sides are both smaller
    than the image's. If there is none, the image is left alone. Masks are left alone. The samples
    that are left alone cost no time. The input must be an image of 1 to 4 channels in uint8,
    float16 or float32.

    Attributes:
        p: The probability that a window is drawn for an image, 0 to 1. The default is 0.5.
        scale: The window's share of the image's area, [min, max], each 0 to 1. Drawn uniformly.
            The default is [0.02, 0.33].
        ratio: The window's height / width, [min, max], both above 0. Drawn log-uniformly. The
            default is [0.3, 3.3].
        value: The value inside the window, in units of the step's input: one number, or one per
            channel. The default is 0, which after normalize is the mean colour. "random" draws a
            standard normal number for each channel of each pixel; then all images must be floats,
            and on the engine `dali` have one number of channels.
    """

    p: Probability = 0.5
    scale: Annotated[
        tuple[Probability, Probability], two_numbers("[min, max], each from 0 to 1"), ORDERED
    ] = (0.02, 0.33)
    ratio: PositiveRange = (0.3, 3.3)
    value: Annotated[Literal["random"] | Value, BeforeValidator(_numbers_or_random)] = (0.0,)

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws that one sample needs."""
        return _SEED + (self.value == RANDOM)

    def sample(self, u: Uniforms) -> Sampled:
        """Draw which samples get a window, ten windows for each, and a position.

        Returns:
            A dict of arrays for B samples:
            `runs`: int32 (B,), 1 for the samples that get a window, else 0.
            `factors`: float64 (B, 10, 2), [height, width] of the ten windows, each divided by the
                square root of the image's area.
            `position`: float64 (B, 2), [top, left] as fractions of the free space around the
                window, in [0, 1).
            `seed`: int64 (B,), the seed of the noise. Only if `value` is "random".
        """
        areas, ratios = u[:, 1 : _TRIES + 1], u[:, _TRIES + 1 : 2 * _TRIES + 1]
        sampled: Sampled = {
            "runs": (u[:, 0] < self.p).astype(np.int32),
            "factors": draw_windows(self.scale, self.ratio, areas, ratios, width_first=True),
            "position": u[:, 2 * _TRIES + 1 : _SEED],
        }
        return sampled | ({"seed": noise.draw_seeds(u[:, _SEED])} if self.value == RANDOM else {})

    def adapt_to_mask(self) -> Self:
        """Return a copy for masks, which leaves them alone, as torchvision does."""
        return self.model_copy(update={"p": 0.0, "value": (0.0,)})

    def infer_spec(self, input_spec: Spec) -> Spec:
        if not self.p:
            return check_decoded(input_spec)
        if isinstance(self.value, str):
            return self._check_noise(check_picture(input_spec))
        return erase_with(self.value, input_spec, "value")

    def _check_noise(self, input_spec: Spec) -> Spec:
        if input_spec.dtype == "uint8":
            raise StepIncompatibleError(
                "value is 'random', which draws normal numbers around 0 that uint8 cannot hold: "
                "write 'to_dtype: {dtype: float32, scale: true}', and 'normalize', before it"
            )
        return add_fill(noise.ANY_NUMBER, input_spec)

    def window(self, p: Params, size: Any) -> tuple[Any, Any, Any]:
        """Return the window's [top, left] and [height, width] in pixels, and whether to erase it.

        The formula is that of torchvision's make_params.

        Args:
            p: The arrays that `sample` returned.
            size: [height, width] of the image in pixels.
        """
        chosen = choose_windows(p, size, p["runs"])
        if chosen is not None:
            windows = chosen[0]
            return windows[:, :2], windows[:, 2:], windows[:, 2] > 0
        tries = np.rint(p["factors"] * np.sqrt(size.prod(-1))[..., None, None])
        fits = (tries < size[..., None, :]).all(-1)
        erased = fits.any(-1) & (p["runs"] > 0)
        shape = np.where(erased[..., None], take_first(tries, fits), 0.0)
        return np.floor(p["position"] * (size - shape + 1.0)), shape, erased

    def lower(self, image: Primitives, p: Params) -> None:
        if not self.p:
            return
        anchor, shape, erased = self.window(p, image.size)
        value = (0.0,) if isinstance(self.value, str) else self.value

        def erase(part: Primitives) -> None:
            part.erase(anchor, shape, value, p.get("seed"))

        image.switch(erased.astype(np.int32), [lambda part: None, erase])

    def torch(self, image: Any, p: Params) -> Any:
        import torch
        from torchvision.transforms.v2 import functional as F

        anchor, shape, erased = self.window(p, np.array(image.shape[-2:], np.float64))
        if not erased:
            return image
        window: list[int] = [*anchor.astype(int).tolist(), *shape.astype(int).tolist()]
        if self.value == RANDOM:
            field = noise.normal_field(p["seed"], (window[2], window[3], len(image)))
            value = torch.from_numpy(field).permute(2, 0, 1).to(image.dtype)
        else:
            value = torch.tensor(self.value).to(image.dtype)[:, None, None]
        return F.erase(image, *window, to_device(value, image.device))
