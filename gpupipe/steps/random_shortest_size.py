"""random_shortest_size: resize the shorter side to one of several lengths."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, model_validator

from gpupipe.pipeline.geometry_step import ResizingStep
from gpupipe.pipeline.step import Params, Sampled, Uniforms
from gpupipe.schema.field_types import Side, is_number, should_be


def _lengths(value: Any) -> Any:
    value = [value] if is_number(value) else value
    if not isinstance(value, (list, tuple)) or not value:
        raise should_be("a number of pixels, or a list of numbers")
    return value


class RandomShortestSize(ResizingStep):
    """Resize the shorter side to one of several lengths, drawn for each image.

    It is torchvision.transforms.v2.RandomShortestSize. The aspect ratio is kept. Output sizes
    differ between samples, so a crop must follow.

    Attributes:
        min_size: The lengths of the shorter side in pixels, one number or a list. All of a list
            are equally probable.
        max_size: The longest that the longer side may become, in pixels, at least as large as each
            of `min_size`. The default is no limit.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    min_size: Annotated[tuple[Side, ...], BeforeValidator(_lengths)]
    max_size: Side | None = None

    num_uniforms = 1
    example = {"min_size": [128, 192, 256]}

    @model_validator(mode="after")
    def _check_sizes(self) -> RandomShortestSize:
        if self.max_size is not None and max(self.min_size) > self.max_size:
            raise ValueError(
                f"min_size has {max(self.min_size)}, but the longer side is at most max_size, "
                f"{self.max_size}: make max_size larger"
            )
        return self

    def sample(self, u: Uniforms) -> Sampled:
        """Return short: (B,), the length of the shorter side in pixels."""
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
