"""pad: add pixels around the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from gpupipe.parameters import Fill, Padding, PaddingMode
from gpupipe.step import DaliImage, Params, Refused, Spec, Step, one_a_channel


class Pad(Step):
    """torchvision.transforms.v2.Pad.

    padding: pixels: one number, [left and right, top and bottom], or [left, top, right, bottom].
    fill: the value of constant padding, 0 to 255: a number, or one a channel.
    padding_mode: "constant", "edge" (repeat the last pixel), "reflect" (mirror without it), "symmetric" (mirror with it).
    """

    padding: Padding
    fill: Fill = Field(default=(0.0,))
    padding_mode: PaddingMode = "constant"

    def spec(self, given: Spec) -> Spec:
        one_a_channel("fill", self.fill, given)
        left, top, right, bottom = self.padding
        if given.size and self.padding_mode == "reflect" and not (max(top, bottom) < given.size[0] and max(left, right) < given.size[1]):
            raise Refused(f"reflect cannot add more pixels than the image has, less one: it is {given.size[0]}x{given.size[1]}")
        rows, columns = top + bottom, left + right
        return replace(
            given,
            height=None if given.height is None else given.height + rows,
            width=None if given.width is None else given.width + columns,
            at_least=(given.at_least[0] + rows, given.at_least[1] + columns),
        )

    def dali(self, image: DaliImage, p: Params) -> None:
        left, top, right, bottom = self.padding
        before, after = np.array([top, left], np.float64), np.array([bottom, right], np.float64)
        if self.padding_mode == "constant":
            image.crop(-before, image.size + before + after, self.fill)
        else:
            image.pad(before, after, self.padding_mode)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        return F.pad(image, list(self.padding), fill=list(self.fill), padding_mode=self.padding_mode)
