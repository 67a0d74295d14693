"""random_resize: resize the shorter side to a random length."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import model_validator

from gpupipe.pipeline.geometry_step import ResizingStep
from gpupipe.pipeline.step import Params, Sampled, Uniforms
from gpupipe.schema.field_types import Side


class RandomResize(ResizingStep):
    """Resize the shorter side to a random length, as torchvision.transforms.v2.RandomResize.

    The aspect ratio is kept. Output sizes differ between samples, so a crop must follow.

    Attributes:
        min_size: The smallest length of the shorter side, in pixels.
        max_size: The length of the shorter side is less than this, in pixels. As in torchvision,
            it is drawn from min_size to max_size - 1.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    min_size: Side
    max_size: Side

    num_uniforms = 1
    example = {"min_size": 128, "max_size": 384}

    @model_validator(mode="after")
    def _check_sizes(self) -> RandomResize:
        if self.max_size <= self.min_size:
            raise ValueError(
                f"max_size is {self.max_size}, but must be larger than min_size, {self.min_size}: "
                "sizes are drawn from min_size to max_size - 1"
            )
        return self

    def sample(self, u: Uniforms) -> Sampled:
        """Return short: (B,), the length of the shorter side in whole pixels."""
        return {"short": self.min_size + np.floor(u[:, 0] * (self.max_size - self.min_size))}

    @property
    def min_side(self) -> int:
        return self.min_size

    def shape(self, p: Params, size: Any) -> Any:
        # F.resize computes int(short * longer / shorter), and takes `short` for the shorter side.
        return np.floor(size * p["short"][..., None] / size.min(-1, keepdims=True))
