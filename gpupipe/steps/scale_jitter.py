"""scale_jitter: resize by a random factor around a target size."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.geometry_step import ResizingStep
from gpupipe.pipeline.step import Params, Sampled, Uniforms
from gpupipe.schema.field_types import PositiveRange, Side, two_numbers


class ScaleJitter(ResizingStep):
    """Resize by a random factor, as torchvision.transforms.v2.ScaleJitter.

    The factor 1 makes the image as large as fits into `target_size`. The aspect ratio is kept, and
    each side is at least 1 pixel. Output sizes differ between samples, so a crop must follow.

    Attributes:
        target_size: [width, height] in pixels. As torchvision computes it, the first number is
            for the width.
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
        """Return scale: (B,), the size relative to the largest that fits into target_size."""
        return {"scale": draw_between(self.scale_range, u[:, 0])}

    def shape(self, p: Params, size: Any) -> Any:
        fit = (np.array(self.target_size[::-1], np.float64) / size).min(-1, keepdims=True)
        return np.maximum(np.floor(size * (fit * p["scale"][..., None])), 1.0)
