"""random_erasing: replace a random window of the image by one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator

from gpupipe.pipeline.channel_checks import add_fill, check_fill, check_picture
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Params, Spec, Step, StepIncompatible
from gpupipe.runtime.transfer import to_device
from gpupipe.schema.field_types import (
    PositiveRange,
    Probability,
    Value,
    check_list,
    check_ordered,
    should_be,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_TRIES = 10


def _shares(value: Any) -> Any:
    return check_list(value, (2,), "[least, most], each from 0 to 1")


def _numbers(value: Any) -> Any:
    if isinstance(value, str):
        raise should_be(
            "one number, or a list with one for each channel: noise that differs from pixel to "
            "pixel, as torchvision's 'random', is not available"
        )
    return value


class RandomErasing(Step):
    """Replace a random window by one value, as torchvision.transforms.v2.RandomErasing.

    Like torchvision, it draws ten windows and takes the first that is smaller than the image on
    both sides. If none is, the image is left alone. Masks are left alone. The samples that are left
    alone cost no time. The input must be an image of 1 to 4 channels in uint8, float16 or float32.

    Attributes:
        p: The probability of a window, 0 to 1. The default is 0.5.
        scale: The window's share of the image's area, [least, most], each 0 to 1. Drawn uniformly.
            The default is [0.02, 0.33].
        ratio: The window's height / width, [least, most], both above 0. Drawn log-uniformly. The
            default is [0.3, 3.3].
        value: The value inside the window, in units of the step's input: one number, or one per
            channel. The default is 0, which after normalize is the mean colour.
    """

    p: Probability = 0.5
    scale: Annotated[
        tuple[Probability, Probability], BeforeValidator(_shares), AfterValidator(check_ordered)
    ] = (0.02, 0.33)
    ratio: PositiveRange = (0.3, 3.3)
    value: Annotated[Value, BeforeValidator(_numbers)] = (0.0,)

    num_uniforms: ClassVar[int] = 2 * _TRIES + 3

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Draw which samples get a window, ten windows for each, and a position.

        Returns:
            runs: int32 (B,), 1 for the samples that get a window, else 0.
            factors: (B, 10, 2), [height, width] of the ten windows, each divided by the square root
                of the image's area.
            position: (B, 2), [top, left] as fractions of the free space around the window, in
                [0, 1).
        """
        areas, ratios = u[:, 1 : _TRIES + 1], u[:, _TRIES + 1 : 2 * _TRIES + 1]
        area = self.scale[0] + areas * (self.scale[1] - self.scale[0])
        low, high = np.log(self.ratio)
        ratio = np.exp(low + ratios * (high - low))
        return {
            "runs": (u[:, 0] < self.p).astype(np.int32),
            "factors": np.stack([np.sqrt(area * ratio), np.sqrt(area / ratio)], -1),
            "position": u[:, 2 * _TRIES + 1 :],
        }

    def adapt_to_mask(self) -> Self:
        """Return the step as it works on a mask: it leaves every one alone, as torchvision does."""
        return self.model_copy(update={"p": 0.0, "value": (0.0,)})

    def infer_spec(self, input_spec: Spec) -> Spec:
        if not self.p:
            return check_decoded(input_spec)
        check_fill(self.value, check_picture(input_spec), "value")
        parts = [n for n in self.value if not n.is_integer()]
        if parts and input_spec.dtype == "uint8":
            raise StepIncompatible(
                f"value is {parts[0]:g}, but uint8 holds whole numbers from 0 to 255: write one of "
                "them, or 'to_dtype: {dtype: float32, scale: true}' before it"
            )
        return add_fill(self.value, input_spec)

    def window(self, p: Params, size: Any) -> tuple[Any, Any, Any]:
        """Return [top, left] and [height, width] of the window in pixels, and whether it is erased.

        The formula is that of torchvision's make_params.

        Args:
            p: What `sample` returned.
            size: [height, width] of the image in pixels.
        """
        tries = np.rint(p["factors"] * np.sqrt(size.prod(-1))[..., None, None])
        fits = (tries < size[..., None, :]).all(-1)
        erased = fits.any(-1) & (p["runs"] > 0)
        drawn = np.take_along_axis(tries, fits.argmax(-1)[..., None, None], -2)[..., 0, :]
        shape = np.where(erased[..., None], drawn, 0.0)
        return np.floor(p["position"] * (size - shape + 1.0)), shape, erased

    def lower(self, image: Primitives, p: Params) -> None:
        if not self.p:
            return
        anchor, shape, erased = self.window(p, image.size)
        image.switch(
            erased.astype(np.int32),
            [lambda part: None, lambda part: part.erase(anchor, shape, self.value)],
        )

    def torch(self, image: Any, p: Params) -> Any:
        import torch
        from torchvision.transforms.v2 import functional as F

        anchor, shape, erased = self.window(p, np.array(image.shape[-2:], np.float64))
        if not erased:
            return image
        window: list[int] = [*anchor.astype(int).tolist(), *shape.astype(int).tolist()]
        value = torch.tensor(self.value).to(image.dtype)[:, None, None]
        return F.erase(image, *window, to_device(value, image.device))
