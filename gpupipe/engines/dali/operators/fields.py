"""Random fields that DALI is fed with: a number, or a displacement, for each pixel of an image.

The numbers are those of every other engine: see augment/noise.py. Each image gets a field of its
own size. Samples that are not `present` get a single zero, at no cost in time or memory: another
branch of a `switch` takes them, where nothing reads their field.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpupipe.augment import noise
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.engines.dali.operators.ops import Floats
from gpupipe.engines.dali.operators.subgraph import Array, DeferredArrays
from gpupipe.pipeline.primitives import Seeds
from gpupipe.pipeline.spec_checks import count_channels
from gpupipe.pipeline.step import NoLoweringError, Spec
from gpupipe.runtime.ranks import cores_of_rank

Present = NDArray[np.bool_]


def make_noise(
    spec: Spec, size: Floats, present: Present, seeds: Seeds, mean: float, sigma: float
) -> DeferredArrays:
    """Return the noise of each image, (H, W, C): int16 for uint8, else float32."""
    shapes, dtype = _shapes(spec, size, present), spec.dtype
    return _defer(
        lambda n: noise.make_noise(seeds[n], shapes[n], dtype, mean, sigma),
        present,
        "int16" if dtype == "uint8" else "float32",
    )


def fill_windows(
    spec: Spec, size: Floats, present: Present, seeds: Seeds, anchor: Floats, shape: Floats
) -> DeferredArrays:
    """Return standard normal numbers in the window of each image, and zeros beside it.

    Args:
        spec: Layout and channels of the images.
        size: [height, width] of the images in pixels, (B, 2) or (2,).
        present: Which samples get numbers, (B,).
        seeds: The seed of each sample, (B,).
        anchor: [top, left] of the windows in pixels, (B, 2) or (2,).
        shape: [height, width] of the windows in pixels, (B, 2) or (2,).

    Returns:
        float32 (H, W, C) for each image.
    """
    shapes = _shapes(spec, size, present)
    windows = np.concatenate([np.broadcast_to(v, (len(seeds), 2)) for v in (anchor, shape)], -1)

    def fill_window(n: int) -> NDArray[np.float32]:
        top, left, height, width = windows[n].astype(int).tolist()
        field = np.zeros(shapes[n], np.float32)
        drawn = noise.normal_field(seeds[n], (height, width, shapes[n][2]))
        field[top : top + height, left : left + width] = drawn
        return field

    return _defer(fill_window, present, "float32")


def make_displacements(
    size: Floats, present: Present, seeds: Seeds, elastic: Elastic
) -> DeferredArrays:
    """Return the displacements of each image, float32 (H, W, 2)."""
    sides = np.broadcast_to(size, (len(present), 2)).astype(int).tolist()
    return _defer(
        lambda n: make_displacement(seeds[n], tuple(sides[n]), elastic), present, "float32"
    )


def _shapes(spec: Spec, size: Floats, present: Present) -> list[tuple[int, int, int]]:
    """Return the shape (H, W, C) of each image.

    Raises:
        NoLoweringError: If the number of channels differs between samples.
    """
    channels = count_channels(spec)
    if channels is None:
        raise NoLoweringError(
            "it makes a number for each channel of each pixel, but the number of channels differs "
            "between samples: store arrays with equal channels, or take 'engine: cpu'"
        )
    sides = np.broadcast_to(size, (len(present), 2)).astype(int).tolist()
    return [(height, width, channels) for height, width in sides]


def _defer(make: Callable[[int], Array], present: Present, dtype: DTypeLike) -> DeferredArrays:
    """Return fields (H, W, C) that `make` makes of a sample's position, in several threads.

    Threads help, because the numbers are drawn without holding the GIL.
    """

    def make_all() -> list[Array]:
        fields: list[Array] = [np.zeros((1, 1, 1), dtype)] * len(present)

        def fill(number: int) -> None:
            fields[number] = make(number)

        numbers = np.flatnonzero(present).tolist()
        if len(numbers) < 2:
            for number in numbers:
                fill(number)
            return fields
        with ThreadPoolExecutor(min(len(numbers), cores_of_rank())) as threads:
            list(threads.map(fill, numbers))
        return fields

    return DeferredArrays(np.dtype(dtype), 4, make_all)
