"""random_resized_crop: a window of random area and aspect ratio, resized (Inception's crop)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from gpupipe.arithmetic import as_number, cast, constant, floor, minimum, reduce, round_half_up, sqrt, stack, take
from gpupipe.parameters import Interpolation, PositiveRange, Size
from gpupipe.step import DaliImage, Params, Spec, Step, decoded

_TRIES = 10
_PREFERENCE = np.arange(_TRIES, -1, -1)


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
            raise ValueError("bicubic without antialias differs between DALI and torchvision: set antialias: true, or take bilinear")
        return self

    lanes: ClassVar[int] = 2 * _TRIES + 2

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """factors: (B, 11, 2), the sides [height, width] of the ten windows in square roots of the image's area, and then zeros.
        position: (B, 2), where in the room that there is, [top, left], each in [0, 1). lowest, highest: (B,), the bounds of the ratio."""
        area = self.scale[0] + u[:, :_TRIES] * (self.scale[1] - self.scale[0])
        low, high = np.log(self.ratio)
        ratio = np.exp(low + u[:, _TRIES : 2 * _TRIES] * (high - low))
        factors = np.zeros((len(u), _TRIES + 1, 2))
        factors[:, :_TRIES] = np.stack([np.sqrt(area / ratio), np.sqrt(area * ratio)], -1)
        lowest, highest = (np.full(len(u), bound) for bound in self.ratio)
        return {"factors": factors, "position": u[:, 2 * _TRIES :], "lowest": lowest, "highest": highest}

    def spec(self, given: Spec) -> Spec:
        return replace(decoded(given), height=self.size[0], width=self.size[1], at_least=self.size)

    def window(self, p: Params, size: Any) -> tuple[Any, Any]:
        """[top, left] and [height, width] of the window in an image of `size` = [height, width]: the first try that fits,
        else the largest centred window whose ratio is within bounds.

        In few operations: each is an operator over the batch in DALI. A side rounds to at most n where it is below n + 0.5.
        """
        height, width = size[0], size[1]
        tries = p["factors"] * sqrt(height * width)
        fits = reduce("min", (tries < size + 0.5) & (tries >= 0.5), 1)
        best = reduce("max", fits * constant(size, _PREFERENCE), 0)
        found = as_number(best > 0.5)
        missing = 1.0 - found
        whole = minimum(size, round_half_up(stack(width / p["lowest"], height * p["highest"])))
        shape = round_half_up(take(tries, _TRIES - best)) + whole * missing
        anywhere = p["position"] * found
        anchor = floor((anywhere + missing * 0.5) * (size - shape) + anywhere)
        return anchor, shape

    def dali(self, image: DaliImage, p: Params) -> None:
        anchor, shape = self.window(p, image.size)
        image.crop(anchor, shape)
        image.resize(self.size, self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        anchor, shape = self.window(p, np.array(image.shape[-2:], np.float64))
        window: list[int] = [*cast(anchor, "int64").tolist(), *cast(shape, "int64").tolist()]
        mode = InterpolationMode(self.interpolation)
        return F.resized_crop(image, *window, list(self.size), mode, antialias=self.antialias)
