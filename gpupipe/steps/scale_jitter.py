"""scale_jitter: resize by a random factor around a target size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from gpupipe.augment.resizing import ResizingStep
from gpupipe.pipeline.step import Params
from gpupipe.schema.field_types import PositiveRange, Side, check_list


def _pair(value: Any) -> Any:
    return check_list(value, (2,), "[width, height] in pixels")


class ScaleJitter(ResizingStep):
    """Resize by a random factor, as torchvision.transforms.v2.ScaleJitter.

    The factor 1 makes the image as large as fits into `target_size`. The aspect ratio is kept, and
    each side is at least 1 pixel. Output sizes differ between samples, so a crop must follow.

    Attributes:
        target_size: [width, height] in pixels. As torchvision computes it, the first number is
            for the width.
        scale_range: The factor of size, [least, most], both above 0. Drawn uniformly. The default
            is [0.1, 2].
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    target_size: Annotated[tuple[Side, Side], BeforeValidator(_pair)]
    scale_range: PositiveRange = (0.1, 2.0)

    num_uniforms: ClassVar[int] = 1
    example: ClassVar[Mapping[str, Any]] = {"target_size": [320, 320]}

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Return scale: (B,), the factor relative to the largest size that fits."""
        least, most = self.scale_range
        return {"scale": least + u[:, 0] * (most - least)}

    def shape(self, p: Params, size: Any) -> Any:
        fit = (np.array(self.target_size[::-1], np.float64) / size).min(-1, keepdims=True)
        return np.maximum(np.floor(size * (fit * p["scale"][..., None])), 1.0)
