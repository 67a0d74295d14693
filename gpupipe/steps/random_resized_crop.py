"""random_resized_crop: a window of random area and aspect ratio, resized (Inception's crop)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from gpupipe.pipeline.axes import resampled
from gpupipe.pipeline.geometry import round_half_up
from gpupipe.pipeline.step import DaliImage, Params, Spec, Step
from gpupipe.schema.field_types import Interpolation, PositiveRange, Size

_TRIES = 10


class RandomResizedCrop(Step):
    """torchvision.transforms.v2.RandomResizedCrop, with its ten tries and its fallback.

    size: of what comes out: one number for a square, or [height, width], in pixels.
    scale: the window's share of the image's area, [least, most].
    ratio: the window's width / height, [least, most], drawn log-uniformly.
    """

    size: Size
    scale: PositiveRange = (0.08, 1.0)
    ratio: PositiveRange = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    @model_validator(mode="after")
    def _bicubic_is_antialiased(self) -> RandomResizedCrop:
        if self.interpolation == "bicubic" and not self.antialias:
            raise ValueError(
                "bicubic without antialias differs between DALI and torchvision: set "
                "antialias: true, or take bilinear"
            )
        return self

    lanes: ClassVar[int] = 2 * _TRIES + 2
    interpolates: ClassVar[bool] = True

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """factors: (B, 10, 2), the sides [height, width] of the ten windows in square roots of the
        image's area. position: (B, 2), where in the room that there is, [top, left], each in [0,
        1).
        """
        area = self.scale[0] + u[:, :_TRIES] * (self.scale[1] - self.scale[0])
        low, high = np.log(self.ratio)
        ratio = np.exp(low + u[:, _TRIES : 2 * _TRIES] * (high - low))
        return {
            "factors": np.stack([np.sqrt(area / ratio), np.sqrt(area * ratio)], -1),
            "position": u[:, 2 * _TRIES :],
        }

    def spec(self, given: Spec) -> Spec:
        return resampled(given).sized(self.size)

    def window(self, p: Params, size: Any) -> tuple[Any, Any]:
        """[top, left] and [height, width] of the window in an image of `size` = [height, width]:
        the first try that fits, else the largest centred window whose ratio is within bounds."""
        height, width = size[..., 0], size[..., 1]
        tries = round_half_up(p["factors"] * np.sqrt(height * width)[..., None, None])
        fits = ((tries <= size[..., None, :]) & (tries > 0)).all(-1)
        drawn = np.take_along_axis(tries, fits.argmax(-1)[..., None, None], -2)[..., 0, :]
        lowest, highest = self.ratio
        whole = np.minimum(size, round_half_up(np.stack([width / lowest, height * highest], -1)))
        found = fits.any(-1)[..., None]
        shape = np.where(found, drawn, whole)
        room = size - shape
        return np.where(found, np.floor(p["position"] * (room + 1.0)), np.floor(room / 2.0)), shape

    def dali(self, image: DaliImage, p: Params) -> None:
        anchor, shape = self.window(p, image.size)
        image.crop(anchor, shape)
        image.resize(self.size, self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        anchor, shape = self.window(p, np.array(image.shape[-2:], np.float64))
        window: list[int] = [*anchor.astype(int).tolist(), *shape.astype(int).tolist()]
        mode = InterpolationMode(self.interpolation)
        return F.resized_crop(image, *window, list(self.size), mode, antialias=self.antialias)
