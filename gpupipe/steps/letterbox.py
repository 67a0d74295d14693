"""letterbox: fit the image into a fixed size, and fill the rest."""

from typing import Any

import numpy as np

from gpupipe.pipeline.geometry_step import ResamplingStep, torch_interpolation
from gpupipe.pipeline.spec_checks import add_fill, check_fill, check_resampling
from gpupipe.pipeline.step import Params, Primitives, Spec
from gpupipe.pipeline.tensors import cut
from gpupipe.schema.field_types import AnyFill, Size


class Letterbox(ResamplingStep):
    """Fit the image into a fixed size, keep its aspect ratio, and fill the rest.

    It is the resize with which YOLO models are evaluated: LetterBox in ultralytics/data/augment.py
    of Ultralytics, with `auto: false`. The image is in the centre; of an odd number of pixels, the
    larger half is below or to the right.

    Attributes:
        size: The output's size: one number for a square, or [height, width], in pixels. Each side
            is 1 to 65535.
        fill: The value around the image: one number, or one per channel. The default is 114, for
            images with 0 to 255. Masks get 0; {image: ..., mask: ...} changes that.
        scaleup: Whether to enlarge smaller images. The default is true.
        center: Whether the image is in the centre; if false, it is at the top left. The default is
            true.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is false, since OpenCV's resize has none;
            bicubic requires true.
    """

    size: Size
    fill: AnyFill = (114.0,)
    scaleup: bool = True
    center: bool = True
    antialias: bool = False

    example = {"size": [200, 320]}

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_fill(self.fill, check_resampling(input_spec))
        return add_fill(self.fill, input_spec).with_size(self.size)

    def shape(self, size: Any) -> Any:
        """Return [height, width] in pixels of the resized image.

        Args:
            size: [height, width] of the image in pixels, (..., 2).
        """
        factor = (np.array(self.size, np.float64) / size).min(-1, keepdims=True)
        if not self.scaleup:
            factor = np.minimum(factor, 1.0)
        return np.maximum(np.rint(size * factor), 1.0)

    def border(self, shape: Any) -> Any:
        """Return [top, left], the pixels before the resized image of `shape` [height, width]."""
        if not self.center:
            return np.zeros_like(shape)
        # LetterBox rounds half the free space less 0.1, so that halves are rounded down.
        return np.rint((np.array(self.size) - shape) / 2.0 - 0.1)

    def lower(self, image: Primitives, p: Params) -> None:
        shape = self.shape(image.size)
        image.resize(shape, self.interpolation, self.antialias)
        image.crop(-self.border(shape), self.size, self.fill)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        shape = self.shape(np.array(image.shape[-2:], np.float64))
        mode = torch_interpolation(self.interpolation)
        resized = F.resize(image, shape.astype(int).tolist(), mode, antialias=self.antialias)
        return cut(resized, -self.border(shape), self.size, self.fill)
