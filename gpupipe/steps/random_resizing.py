"""Steps that resize each image to a size that is drawn for it: all of them keep the aspect ratio.

They are random_resize, random_shortest_size and scale_jitter.
"""

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, model_validator

from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.geometry_step import ResamplingStep, torch_interpolation
from gpupipe.pipeline.spec_checks import check_resampling
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Uniforms
from gpupipe.schema.field_types import PositiveRange, Side, check_list, two_numbers


class ResizingStep(ResamplingStep):
    """The base of steps that resize each image to a size that is drawn for it.

    Subclasses define `shape`, and may define `min_side`, a lower bound of the sides it returns.
    """

    @property
    def min_side(self) -> int:
        """A lower bound of the sides of every output, in pixels."""
        return 1

    def shape(self, p: Params, size: Any) -> Any:
        """Return [height, width] of the output in whole pixels, (..., 2), each at least 1.

        Args:
            p: The arrays that `sample` returned.
            size: [height, width] of the image in pixels, (..., 2).
        """
        raise NotImplementedError

    def infer_spec(self, input_spec: Spec) -> Spec:
        return check_resampling(input_spec).with_size((None, None), (self.min_side, self.min_side))

    def lower(self, image: Primitives, p: Params) -> None:
        image.resize(self.shape(p, image.size), self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        shape = self.shape(p, np.array(image.shape[-2:], np.float64)).astype(int).tolist()
        mode = torch_interpolation(self.interpolation)
        return F.resize(image, shape, mode, antialias=self.antialias)


class RandomResize(ResizingStep):
    """Resize the shorter side to a random length, as torchvision.transforms.v2.RandomResize.

    The aspect ratio is kept. Output sizes differ between samples, so a crop must follow.

    Attributes:
        min_size: The smallest length of the shorter side, in pixels.
        max_size: The length of the shorter side is less than this, in pixels. As in torchvision,
            the length is drawn from min_size to max_size - 1.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    min_size: Side
    max_size: Side

    num_uniforms = 1
    example = {"min_size": 128, "max_size": 384}

    @model_validator(mode="after")
    def _check_sizes(self) -> "RandomResize":
        if self.max_size <= self.min_size:
            raise ValueError(
                f"max_size is {self.max_size}, but must be larger than min_size, {self.min_size}: "
                "sizes are drawn from min_size to max_size - 1"
            )
        return self

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `short`, float64 (B,), each sample's shorter side in whole pixels."""
        return {"short": self.min_size + np.floor(u[:, 0] * (self.max_size - self.min_size))}

    @property
    def min_side(self) -> int:
        return self.min_size

    def shape(self, p: Params, size: Any) -> Any:
        # F.resize computes int(short * longer / shorter), and takes `short` for the shorter side.
        return np.floor(size * p["short"][..., None] / size.min(-1, keepdims=True))


_LENGTHS = "a number of pixels, or a list of numbers"


class RandomShortestSize(ResizingStep):
    """Resize the shorter side to one of several lengths, drawn for each image.

    It is torchvision.transforms.v2.RandomShortestSize. The aspect ratio is kept. Output sizes
    differ between samples, so a crop must follow.

    Attributes:
        min_size: The lengths of the shorter side in pixels: one number, or a list of equally
            probable lengths.
        max_size: The largest length of the longer side in pixels. It must be at least as large as
            each length in `min_size`. The default is no limit.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    min_size: Annotated[
        tuple[Side, ...], BeforeValidator(lambda v: check_list(v, range(1, 65536), _LENGTHS))
    ]
    max_size: Side | None = None

    num_uniforms = 1
    example = {"min_size": [128, 192, 256]}

    @model_validator(mode="after")
    def _check_sizes(self) -> "RandomShortestSize":
        if self.max_size is not None and max(self.min_size) > self.max_size:
            raise ValueError(
                f"min_size has {max(self.min_size)}, but the longer side is at most max_size, "
                f"{self.max_size}: make max_size larger"
            )
        return self

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `short`, float64 (B,), each sample's shorter side in whole pixels."""
        lengths = np.array(self.min_size, np.float64)
        return {"short": lengths[np.floor(u[:, 0] * len(lengths)).astype(int)]}

    @property
    def min_side(self) -> int:
        # torchvision rounds down: length / side * side may be less than the length by 2**-53.
        return max(min(self.min_size) - 1, 1) if self.max_size is None else 1

    def shape(self, p: Params, size: Any) -> Any:
        factor = p["short"][..., None] / size.min(-1, keepdims=True)
        if self.max_size is not None:
            factor = np.minimum(factor, self.max_size / size.max(-1, keepdims=True))
        return np.maximum(np.floor(size * factor), 1.0)


class ScaleJitter(ResizingStep):
    """Resize by a random factor, as torchvision.transforms.v2.ScaleJitter.

    The factor 1 makes the image as large as fits into `target_size`. The aspect ratio is kept, and
    each side is at least 1 pixel. Output sizes differ between samples, so a crop must follow.

    Attributes:
        target_size: [width, height] in pixels. torchvision's code, too, takes the first number for
            the width.
        scale_range: The factor of size, [min, max], both above 0. Drawn uniformly. The default
            is [0.1, 2].
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    target_size: Annotated[tuple[Side, Side], two_numbers("[width, height] in pixels")]
    scale_range: PositiveRange = (0.1, 2.0)

    num_uniforms = 1
    example = {"target_size": [320, 320]}

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `scale`, float64 (B,), the factor of size for each of B samples."""
        return {"scale": draw_between(self.scale_range, u[:, 0])}

    def shape(self, p: Params, size: Any) -> Any:
        fit = (np.array(self.target_size[::-1], np.float64) / size).min(-1, keepdims=True)
        return np.maximum(np.floor(size * (fit * p["scale"][..., None])), 1.0)
