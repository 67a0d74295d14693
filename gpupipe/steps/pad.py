"""pad: add pixels around the image."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import Self

from gpupipe.pipeline.geometry import before_and_after, check_mirror, expand_margins
from gpupipe.pipeline.spec_checks import add_fill, check_fill, check_picture
from gpupipe.pipeline.step import Params, Primitives, Spec, Step, StepIncompatibleError
from gpupipe.pipeline.tensors import cut
from gpupipe.schema.field_types import AnyFill, Padding, PaddingMode


class Pad(Step):
    """Add pixels on all sides, as torchvision.transforms.v2.Pad.

    Attributes:
        padding: Pixels: one number, [left and right, top and bottom], or [left, top, right,
            bottom]. Each is 0 to 65535. For a volume, one number or [left, top, front, right,
            bottom, back]; for a series, one number or [before, after].
        fill: The value of constant padding: one number, or one per channel. The image's dtype must
            be able to hold it. The default is 0. Masks get 0; {image: ..., mask: ...} changes that.
        padding_mode: "constant" (the default), "edge" (repeat the last pixel), "reflect" (mirror
            without repeating the last pixel) or "symmetric" (mirror and repeat it). All but
            "constant" need an image of 1 to 4 channels.
    """

    padding: Padding
    fill: AnyFill = (0.0,)
    padding_mode: PaddingMode = "constant"

    example = {"padding": 25, "padding_mode": "reflect"}

    def resolve(self, input_spec: Spec) -> Self:
        padding = expand_margins("padding", self.padding, input_spec)
        return super().resolve(input_spec).model_copy(update={"padding": padding})

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_fill(self.fill, input_spec)
        before, after = before_and_after(expand_margins("padding", self.padding, input_spec))
        if self.padding_mode != "constant":
            check_picture(input_spec)
        margin = np.maximum(before, after)
        if input_spec.size and self.padding_mode == "reflect" and (margin >= input_spec.size).any():
            raise StepIncompatibleError(
                "reflect cannot add more pixels than the image has, less one: it is "
                f"{input_spec.size[0]}x{input_spec.size[1]}"
            )
        more = [int(n) for n in before + after]
        fill = self.fill if self.padding_mode == "constant" else ()
        return add_fill(fill, input_spec).with_size(
            [None if n is None else n + m for n, m in zip(input_spec.sides, more, strict=True)],
            tuple(n + m for n, m in zip(input_spec.at_least, more, strict=True)),
        )

    def lower(self, image: Primitives, p: Params) -> None:
        before, after = before_and_after(self.padding)
        if self.padding_mode == "constant":
            image.crop(-before, image.size + before + after, self.fill)
        else:
            image.pad(before, after, self.padding_mode)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        before, after = before_and_after(self.padding)
        if self.padding_mode == "constant":
            shape = np.array(image.shape[-len(before) :]) + before + after
            return cut(image, -before, shape, self.fill)
        check_mirror(self.padding_mode, before, after, image.shape[-2:])
        return F.pad(image, list(self.padding), padding_mode=self.padding_mode)
