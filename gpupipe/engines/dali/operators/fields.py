"""Random fields that DALI is fed with: a number, or a displacement, for each pixel of a batch.

DALI takes one array for all samples, so all images must have one size, which the spec states. The
numbers are those of every other engine: see augment/noise.py. Samples that are not `present` get
zeros.
"""

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment import noise
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.engines.dali.operators.ops import Floats
from gpupipe.engines.dali.operators.subgraph import Array
from gpupipe.pipeline.primitives import Seeds
from gpupipe.pipeline.step import Spec

Present = NDArray[np.bool_]


def make_noise(spec: Spec, present: Present, seeds: Seeds, mean: float, sigma: float) -> Array:
    """Return the noise of each image, (B, H, W, C): int16 for uint8, else float32."""
    pixels, dtype = noise.shape_of_pixels(spec), spec.dtype
    return noise.stack_fields(
        lambda n: noise.make_noise(seeds[n], pixels, dtype, mean, sigma),
        present,
        pixels,
        "int16" if dtype == "uint8" else "float32",
    )


def fill_windows(
    spec: Spec, present: Present, seeds: Seeds, anchor: Floats, shape: Floats
) -> Array:
    """Return standard normal numbers in the window of each image, and zeros beside it.

    Args:
        spec: Shape and layout of the images.
        present: Which samples get numbers, (B,).
        seeds: The seed of each sample, (B,).
        anchor: [top, left] of the windows in pixels, (B, 2) or (2,).
        shape: [height, width] of the windows in pixels, (B, 2) or (2,).

    Returns:
        float32 (B, H, W, C).
    """
    pixels = noise.shape_of_pixels(spec)
    windows = np.concatenate([np.broadcast_to(v, (len(seeds), 2)) for v in (anchor, shape)], -1)

    def fill_window(n: int) -> NDArray[np.float32]:
        top, left, height, width = windows[n].astype(int).tolist()
        field = np.zeros(pixels, np.float32)
        drawn = noise.normal_field(seeds[n], (height, width, pixels[2]))
        field[top : top + height, left : left + width] = drawn
        return field

    return noise.stack_fields(fill_window, present, pixels)


def make_displacements(spec: Spec, present: Present, seeds: Seeds, elastic: Elastic) -> Array:
    """Return the displacements of each image, float32 (B, H, W, 2)."""
    height, width, _ = noise.shape_of_pixels(spec)
    return noise.stack_fields(
        lambda n: make_displacement(seeds[n], (height, width), elastic),
        present,
        (height, width, 2),
    )
