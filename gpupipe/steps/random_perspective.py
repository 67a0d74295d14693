"""random_perspective: move the corners of the image at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.pipeline.geometry import perspective_matrix
from gpupipe.pipeline.geometry_step import WarpingStep, torch_interpolation
from gpupipe.pipeline.step import Params, Primitives, Sampled, Uniforms
from gpupipe.pipeline.tensors import in_float32
from gpupipe.schema.field_types import Probability, Resampling

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
"""Top-left, top-right, bottom-right, bottom-left, each [x, y]; 1 is the right or bottom end."""


class RandomPerspective(WarpingStep):
    """Apply a random perspective transform, as torchvision.transforms.v2.RandomPerspective.

    Each corner moves towards the centre by whole pixels. If three corners come to lie on one line,
    the image is left alone. The samples that are left alone cost no time. The input must be an
    image of 1 to 4 channels in uint8, float16 or float32.

    Attributes:
        distortion_scale: The largest move of a corner as a fraction of half the image's width and
            height, 0 to 1. The default is 0.5.
        p: The probability of a transform, 0 to 1. The default is 0.5.
        interpolation: "nearest" or "bilinear" (the default).
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is 0. Masks get 0; {image: ..., mask: ...} changes that.
    """

    distortion_scale: Probability = 0.5
    p: Probability = 0.5
    interpolation: Resampling = "bilinear"

    num_uniforms = 9

    def sample(self, u: Uniforms) -> Sampled:
        """Draw which samples are transformed, and how far their corners move.

        Returns:
            runs: int32 (B,), 1 for the samples that are transformed, else 0.
            moves: (B, 4, 2), [x, y] in [0, 1) for top-left, top-right, bottom-right and
                bottom-left: the position in the range of each corner, from its left or top end.
        """
        return {"runs": (u[:, 0] < self.p).astype(np.int32), "moves": u[:, 1:].reshape(-1, 4, 2)}

    def corners(self, p: Params, width_height: Any) -> tuple[Any, Any]:
        """Return the corners of the image, and their positions in the output, (..., 4, 2) each.

        The formula is that of torchvision's make_params.
        """
        bounds = np.floor(self.distortion_scale * np.floor(width_height / 2.0)) + 1.0
        start = _CORNERS * (width_height - 1.0)[..., None, :]
        end = _CORNERS * (width_height - bounds)[..., None, :]
        return start, end + np.floor(p["moves"] * bounds[..., None, :])

    def lower(self, image: Primitives, p: Params) -> None:
        def run(part: Primitives) -> None:
            matrix = perspective_matrix(*self.corners(p, part.width_height))
            part.perspective(matrix, self.interpolation, self.fill)

        image.switch(p["runs"], [lambda part: None, run])

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        if not p["runs"]:
            return image
        width_height = np.array(image.shape[:-3:-1], np.float64)
        matrix = perspective_matrix(*self.corners(p, width_height))
        coefficients = matrix.astype(np.float32).ravel()[:8].tolist()
        mode = torch_interpolation(self.interpolation)
        how = (None, None, mode, list(self.fill), coefficients)
        return in_float32(image, lambda pixels: F.perspective(pixels, *how))
