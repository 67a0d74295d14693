"""center_crop: the middle of the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpupipe.arithmetic import center_offset
from gpupipe.parameters import Size
from gpupipe.step import DaliImage, Params, Spec, Step, decoded


class CenterCrop(Step):
    """torchvision.transforms.v2.CenterCrop.

    size: one number for a square, or [height, width], in pixels. A smaller image is padded with zeros on all sides.
    """

    size: Size

    def spec(self, given: Spec) -> Spec:
        return replace(decoded(given), height=self.size[0], width=self.size[1], at_least=self.size)

    def dali(self, image: DaliImage, p: Params) -> None:
        fits = all(least >= side for least, side in zip(image.spec.at_least, self.size, strict=True))
        image.crop(center_offset(np.array(self.size, np.float64), image.size), self.size, fill=None if fits else (0.0,))

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.center_crop(image, list(self.size))
