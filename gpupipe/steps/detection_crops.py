"""fixed_size_crop and random_size_crop: the crops of recipes for detection."""

from typing import Any, Self

import numpy as np
from pydantic import model_validator

from gpupipe.pipeline.spec_checks import add_fill, check_fill, check_plane
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.pipeline.tensors import cut
from gpupipe.schema.field_types import AnyFill, Side, Size


class FixedSizeCrop(Step):
    """Cut a window of a fixed size, and pad smaller images on the right and at the bottom.

    It is FixedSizeCrop of torchvision's references/detection, the second step of large scale jitter
    (Ghiasi et al. 2021). Along both axes, the window begins at the same share of the free space.
    Boxes that have no area in the window are dropped.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535.
        fill: The value of the padding: one number, or one per channel. The image's dtype must be
            able to hold it. The default is 0. Masks get 0; {image: ..., mask: ...} changes that.
    """

    size: Size
    fill: AnyFill = (0.0,)

    example = {"size": [150, 300]}
    num_uniforms = 1

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `position`, float64 (B, 1), the window's start as a share of the space."""
        return {"position": u}

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_fill(self.fill, check_plane(input_spec))
        return add_fill(self.fill, input_spec).with_size(self.size)

    def anchor(self, p: Params, size: Any) -> Any:
        """Return [top, left] of the window in an image of `size` [height, width], in pixels."""
        return np.floor(np.maximum(size - np.array(self.size, np.float64), 0.0) * p["position"])

    def lower(self, image: Primitives, p: Params) -> None:
        image.crop(self.anchor(p, image.size), self.size, self.fill)
        drop_empty_boxes(image)

    def torch(self, image: Any, p: Params) -> Any:
        anchor = self.anchor(p, np.array(image.shape[-2:], np.float64))
        return cut(image, anchor, self.size, self.fill)


class RandomSizeCrop(Step):
    """Cut a window of a random size at a random position, as DETR's RandomSizeCrop.

    It is datasets/transforms.py of DETR (Carion et al. 2020). The window's height and width are
    drawn independently, each from `min_size` to `max_size` or to the image's side, whichever is
    smaller. A side shorter than `min_size` stays whole. Boxes that have no area in the window are
    dropped. Output sizes differ between samples, so a resize must follow.

    Attributes:
        min_size: The smallest side of the window, in pixels.
        max_size: The largest side of the window, in pixels.
    """

    min_size: Side
    max_size: Side

    example = {"min_size": 100, "max_size": 200}
    num_uniforms = 4

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.max_size < self.min_size:
            raise ValueError(
                f"max_size is {self.max_size}, but should be at least min_size, {self.min_size}"
            )
        return self

    def sample(self, u: Uniforms) -> Sampled:
        """Draw size and position of each window.

        Returns:
            A dict of arrays for B samples:
            `share`: float64 (B, 2), [height, width] as shares of the possible sizes, in [0, 1).
            `position`: float64 (B, 2), [top, left] as shares of the free space, in [0, 1).
        """
        return {"share": u[:, :2], "position": u[:, 2:]}

    def infer_spec(self, input_spec: Spec) -> Spec:
        least = tuple(min(self.min_size, n) for n in check_plane(input_spec).at_least)
        return input_spec.with_size((None, None), least)

    def window(self, p: Params, size: Any) -> tuple[Any, Any]:
        """Return [top, left] and [height, width] of the window in pixels.

        Args:
            p: The arrays that `sample` returned.
            size: [height, width] of the image in pixels.
        """
        low, high = np.minimum(size, self.min_size), np.minimum(size, self.max_size)
        shape = low + np.floor(p["share"] * (high - low + 1.0))
        return np.floor(p["position"] * (size - shape + 1.0)), shape

    def lower(self, image: Primitives, p: Params) -> None:
        image.crop(*self.window(p, image.size))
        drop_empty_boxes(image)

    def torch(self, image: Any, p: Params) -> Any:
        return cut(image, *self.window(p, np.array(image.shape[-2:], np.float64)))


def drop_empty_boxes(image: Primitives) -> None:
    """Drop the boxes without area, on the back end that moves coordinates."""
    if image.annotations is None:
        return
    for name in image.annotations.names("boxes"):
        boxes, samples = image.annotations.values(name), image.annotations.samples(name)
        has_area = (boxes[:, 2:] > boxes[:, :2]).all(-1)
        image.annotations.keep(name, has_area | ~image.present[samples])
