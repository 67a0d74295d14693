"""random_crop: a window of a fixed size, anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.parameters import Fill, Padding, PaddingMode, Size
from gpupipe.step import DaliImage, Params, Refused, Spec, Step, one_a_channel


class RandomCrop(Step):
    """torchvision.transforms.v2.RandomCrop.

    size: one number for a square, or [height, width], in pixels.
    padding: pixels added first: one number, [left and right, top and bottom], or [left, top, right, bottom].
    pad_if_needed: add what an image lacks on both sides; without it a smaller image is an error.
    fill: the value of constant padding, 0 to 255: a number, or one a channel.
    """

    size: Size
    padding: Padding | None = None
    pad_if_needed: bool = False
    fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"

    lanes: ClassVar[int] = 2

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """position: where in the room that there is, [top, left], each in [0, 1)."""
        return {"position": u}

    def spec(self, given: Spec) -> Spec:
        one_a_channel("fill", self.fill, given)
        if given.size and not self.pad_if_needed:
            room = [n + sum(pad) for n, pad in zip(given.size, self._sides(), strict=True)]
            if room[0] < self.size[0] or room[1] < self.size[1]:
                raise Refused(
                    f"it cuts {self.size[0]}x{self.size[1]} out of {room[0]}x{room[1]} pixels: make size smaller, resize first, or set pad_if_needed: true"
                )
        return replace(given, height=self.size[0], width=self.size[1], at_least=self.size)

    def _sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """((top, bottom), (left, right)) of `padding`."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        return (top, bottom), (left, right)

    def margins(self, size: Any) -> tuple[Any, Any]:
        """[top, left] and [bottom, right] of all padding for an image of `size` = [height, width]; what is needed goes to both sides."""
        (top, bottom), (left, right) = self._sides()
        before, after = np.array([top, left], np.float64), np.array([bottom, right], np.float64)
        if self.pad_if_needed:
            lack = np.maximum(np.array(self.size) - (size + before + after), 0.0)
            before, after = before + lack, after + lack
        return before, after

    def anchor(self, p: Params, padded: Any) -> Any:
        """[top, left] of the window in an image of size `padded`."""
        return np.floor(p["position"] * (padded - np.array(self.size) + 1.0))

    def dali(self, image: DaliImage, p: Params) -> None:
        size = image.size
        before, after = self.margins(size)
        padded = size + before + after
        if (self.padding or self.pad_if_needed) and self.padding_mode == "constant":
            image.crop(-before, padded, self.fill)
        elif self.padding or self.pad_if_needed:
            image.pad(before, after, self.padding_mode)
        image.crop(self.anchor(p, padded), self.size)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        size = np.array(image.shape[-2:], np.float64)
        before, after = (m.astype(int).tolist() for m in self.margins(size))
        if any(before + after):
            padding = [before[1], before[0], after[1], after[0]]
            image = F.pad(image, padding, fill=list(self.fill), padding_mode=self.padding_mode)
        size = np.array(image.shape[-2:], np.float64)
        if (size < self.size).any():
            raise ValueError(f"the image, {int(size[0])}x{int(size[1])}, is smaller than the crop, {self.size[0]}x{self.size[1]}")
        top, left = self.anchor(p, size).astype(int).tolist()
        return F.crop(image, top, left, *self.size)
