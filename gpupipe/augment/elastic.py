"""The displacements of elastic_transform: smooth random moves of each pixel.

`make_displacement` computes them with the formula of torchvision's make_params. It blurs along each
axis in turn, which takes far less time than torchvision's blur, and agrees with that to 3e-7. The
extension `gpupipe._kernels` computes the same numbers to the bit.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment import noise, random_fields
from gpupipe.pipeline.geometry import describe_small


def kernel_size(sigma: float) -> int:
    """Return the side of torchvision's blur kernel for `sigma`, both in pixels; 1 for no blur."""
    return int(8.0 * sigma + 1.0) | 1


@dataclass(frozen=True)
class Elastic:
    """How the displacements of an image are drawn.

    Attributes:
        alpha: The strength along [x, y], in half pixels.
        sigma: The standard deviations [x, y] of the blur in pixels; 0 for both for no blur.
    """

    alpha: tuple[float, float]
    sigma: tuple[float, float]

    @property
    def reach(self) -> tuple[int, int]:
        """The largest move along [y, x] in pixels."""
        return ceil(self.alpha[1] / 2.0) + 1, ceil(self.alpha[0] / 2.0) + 1

    @property
    def arguments(self) -> tuple[tuple[float, float], NDArray[np.float32], NDArray[np.float32]]:
        """The strengths, and the kernels of both displacements, as the extension takes them."""
        x, y = (_make_kernels(kernel_size(s) // 2, self.sigma) for s in self.sigma)
        return self.alpha, x, y

    def explain_small(self, size: NDArray[np.float64]) -> str:
        """Return why an image of `size` [height, width] is too small for the blur; "" if not."""
        needed = max(kernel_size(s) for s in self.sigma) // 2 + 1
        if min(size) >= needed:
            return ""
        small = describe_small("the blur", size.astype(int).tolist(), [needed] * 2)
        return f"{small}: write a smaller sigma"


@lru_cache(maxsize=16)
def _make_kernels(half: int, sigma: tuple[float, float]) -> NDArray[np.float32]:
    """Return the Gaussians of sigma [x, y], each from its middle on: float32 (2, half + 1)."""
    if not half:
        return np.ones((2, 1), np.float32)
    sigmas = np.array(sigma)[:, None]
    weights = np.exp(-0.5 * (np.arange(half + 1.0) / sigmas) ** 2)
    total = weights[:, :1] + 2.0 * weights[:, 1:].sum(1, keepdims=True)
    return np.asarray(weights / total, np.float32)


def make_displacement(seed: int, size: tuple[int, int], elastic: Elastic) -> NDArray[np.float32]:
    """Return how far each pixel moves, in the unit of torchvision's functional.elastic.

    Args:
        seed: The seed, from `noise.draw_seeds`.
        size: [height, width] of the image in pixels, for which `elastic.explain_small` returns "".
        elastic: The strength and the blur.

    Returns:
        float32 (H, W, 2), [x, y] in units of half the image's width and height.
    """
    height, width = size
    extension, field = noise.find_kernels(), np.empty((height, width, 2), np.float32)
    if extension is not None:
        extension.displacement(int(seed), elastic.arguments, field)
        return field
    drawn = noise.uniform_field(seed, (2, height, width)) * np.float32(2.0) - np.float32(1.0)
    alpha, *kernels = elastic.arguments
    for axis, side in enumerate((width, height)):
        across, down = kernels[axis]
        moves = random_fields.blur(drawn[axis], across, down)
        np.divide(moves * np.float32(alpha[axis]), np.float32(side), field[..., axis])
    return field
