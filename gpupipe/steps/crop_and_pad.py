"""center_crop, pad and random_crop: cut a window of a fixed size, or add pixels around an image."""

from typing import Any, Self

import numpy as np

from gpupipe.pipeline.geometry import (
    before_and_after,
    center_offset,
    check_mirror,
    describe_small_image,
    expand_margins,
    expand_sides,
)
from gpupipe.pipeline.spec_checks import add_fill, check_fill, check_picture
from gpupipe.pipeline.step import (
    Params,
    Primitives,
    Sampled,
    SampleIncompatibleError,
    Spec,
    Step,
    StepIncompatibleError,
    Uniforms,
)
from gpupipe.pipeline.tensors import cut
from gpupipe.schema.field_types import AnyFill, Padding, PaddingMode, Window


def _pad_by_mirror(image: Any, mode: str, before: Any, after: Any) -> Any:
    """Pad a torch image with its own pixels; `mode` is edge, reflect or symmetric."""
    from torchvision.transforms.v2 import functional as F

    check_mirror(mode, before, after, image.shape[-2:])
    padding = [int(n) for n in (*before[::-1], *after[::-1])]
    return F.pad(image, padding, padding_mode=mode) if any(padding) else image


def _explain_border(mode: str) -> str:
    """Return why boxes and points cannot follow a padding, as `Step.explain_refusal` does."""
    if mode == "constant":
        return ""
    return (
        f"padding_mode is {mode}, which repeats parts of objects in a border without boxes: write "
        "padding_mode: constant"
    )


class CenterCrop(Step):
    """Cut out the centre, as torchvision.transforms.v2.CenterCrop.

    A smaller image is padded with zeros on all sides.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535. For
            a volume, one number or [depth, height, width]; for a series, one number.
    """

    size: Window

    example = {"size": 150}

    def resolve(self, input_spec: Spec) -> Self:
        size = expand_sides("size", self.size, input_spec)
        return super().resolve(input_spec).model_copy(update={"size": size})

    def infer_spec(self, input_spec: Spec) -> Spec:
        return input_spec.with_size(expand_sides("size", self.size, input_spec))

    def lower(self, image: Primitives, p: Params) -> None:
        fits = (np.array(image.spec.at_least) >= self.size).all()
        anchor = center_offset(np.array(self.size, np.float64), image.size)
        if image.annotations is not None:
            # torchvision rounds otherwise for boxes and points, if the image is smaller.
            anchor = np.rint((image.size - np.array(self.size)) / 2.0)
        image.crop(anchor, self.size, fill=None if fits else (0.0,))

    def torch(self, image: Any, p: Params) -> Any:
        size = np.array(image.shape[-len(self.size) :], np.float64)
        return cut(image, center_offset(np.array(self.size, np.float64), size), self.size)


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

    def explain_refusal(self) -> str:
        return _explain_border(self.padding_mode)

    def lower(self, image: Primitives, p: Params) -> None:
        before, after = before_and_after(self.padding)
        if self.padding_mode == "constant":
            image.crop(-before, image.size + before + after, self.fill)
        else:
            image.pad(before, after, self.padding_mode)

    def torch(self, image: Any, p: Params) -> Any:
        before, after = before_and_after(self.padding)
        if self.padding_mode == "constant":
            shape = np.array(image.shape[-len(before) :]) + before + after
            return cut(image, -before, shape, self.fill)
        return _pad_by_mirror(image, self.padding_mode, before, after)


class RandomCrop(Step):
    """Cut a window at a random position, as torchvision.transforms.v2.RandomCrop.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535. For
            a volume, one number or [depth, height, width]; for a series, one number.
        padding: Pixels to add first: one number, [left and right, top and bottom], or [left, top,
            right, bottom]. Each is 0 to 65535. For a volume, one number or [left, top, front,
            right, bottom, back]; for a series, one number or [before, after]. The default is none.
        pad_if_needed: If a side is too short, add as many pixels as are missing at each of its two
            ends. If false, the default, a smaller image is an error.
        fill: The value of constant padding: one number, or one per channel. The image's dtype must
            be able to hold it. The default is 0. Masks get 0; {image: ..., mask: ...} changes that.
        padding_mode: "constant" (the default), "edge", "reflect" or "symmetric", as in pad. All but
            "constant" need an image of 1 to 4 channels.
    """

    size: Window
    padding: Padding | None = None
    pad_if_needed: bool = False
    fill: AnyFill = (0.0,)
    padding_mode: PaddingMode = "constant"

    example = {"size": 150}
    num_uniforms = 3

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the window's position in the free space around it.

        Returns:
            A dict of arrays for B samples:
            `position`: float64 (B, 2), [top, left] as fractions of the free space, in [0, 1).
            `front`: float64 (B, 1), the same along the depth, used for volumes only.
        """
        return {"position": u[:, :2], "front": u[:, 2:]}

    def resolve(self, input_spec: Spec) -> Self:
        written = {"size": expand_sides("size", self.size, input_spec)}
        if self.padding is not None:
            written["padding"] = expand_margins("padding", self.padding, input_spec)
        return super().resolve(input_spec).model_copy(update=written)

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_fill(self.fill, input_spec)
        size = expand_sides("size", self.size, input_spec)
        if self.can_pad and self.padding_mode != "constant":
            check_picture(input_spec)
        if input_spec.size and not self.pad_if_needed:
            sides = np.array(input_spec.size, np.float64)
            room = sides + sum(self.margins(sides))
            if (room < size).any():
                raise StepIncompatibleError(describe_small_image(room, size))
        fill = self.fill if self.can_pad and self.padding_mode == "constant" else ()
        return add_fill(fill, input_spec).with_size(size)

    @property
    def can_pad(self) -> bool:
        """Whether the step may pad an image: it has `padding` or `pad_if_needed`."""
        return self.padding is not None or self.pad_if_needed

    def margins(self, size: Any) -> tuple[Any, Any]:
        """Return two arrays, the padding of an image: [top, left] and [bottom, right], in pixels.

        As in torchvision, `pad_if_needed` adds all missing pixels at both ends.

        Args:
            size: [height, width] of the image in pixels.
        """
        before, after = (
            before_and_after(self.padding) if self.padding else (np.zeros(len(self.size)),) * 2
        )
        if self.pad_if_needed:
            lack = np.maximum(np.array(self.size) - (size + before + after), 0.0)
            before, after = before + lack, after + lack
        return before, after

    def anchor(self, p: Params, padded: Any) -> Any:
        """Return [top, left] of the window in the padded image, in pixels.

        All positions where the window fits are equally probable.

        Args:
            p: The arrays that `sample` returned.
            padded: [height, width] of the padded image in pixels.
        """
        drawn = p["position"]
        if len(self.size) == 3:
            drawn = np.concatenate([p["front"], drawn], -1)
        return np.floor(drawn[..., : len(self.size)] * (padded - np.array(self.size) + 1.0))

    def explain_refusal(self) -> str:
        return _explain_border(self.padding_mode if self.can_pad else "constant")

    def lower(self, image: Primitives, p: Params) -> None:
        size = image.size
        before, after = self.margins(size)
        padded = size + before + after
        if self.can_pad and self.padding_mode == "constant":
            image.crop(-before, padded, self.fill)
        elif self.can_pad:
            image.pad(before, after, self.padding_mode)
        image.crop(self.anchor(p, padded), self.size)

    def torch(self, image: Any, p: Params) -> Any:
        size = np.array(image.shape[-len(self.size) :], np.float64)
        before, after = self.margins(size)
        padded = size + before + after
        if (padded < self.size).any():
            raise SampleIncompatibleError(describe_small_image(padded, self.size))
        if self.can_pad and self.padding_mode != "constant":
            image = _pad_by_mirror(image, self.padding_mode, before, after)
            before = before * 0.0
        return cut(image, self.anchor(p, padded) - before, self.size, self.fill)
