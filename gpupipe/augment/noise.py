"""Random numbers for each pixel, from one drawn seed per sample: noise and displacements.

All engines add the numbers of `normal_field`, so they add the same noise. DALI gets them as an
argument, so all images of a batch must have one size, known before the run. `make_displacement`
computes the moves of elastic_transform with the formula of torchvision's make_params. Two
one-dimensional blurs take an eighth of the time of torchvision's, and agree with it to 3e-7.

A field of 224x224x3 takes 1.2 ms on one core, and 0.6 MB (measured on a Xeon server CPU). For
224x224 and a sigma of 5 the displacements take 4 ms.

The seed is a draw, so it is the same in every run. The field is the same as long as NumPy keeps the
methods of `Generator`: NEP 19 allows them to change in a new release of NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from gpupipe.pipeline.spec_checks import count_channels
from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.runtime.ranks import cores_of_rank

if TYPE_CHECKING:
    from torch import Tensor


SPEED_ADVICE = (
    "noise for each pixel is made on the CPU, 1.2 ms for 224x224x3: add it to smaller images, or "
    "to fewer samples, inside random_apply"
)

ANY_NUMBER = (float("-inf"),)
"""The fill to pass to `spec_checks.add_fill` for noise that is not clamped: any number."""


def draw_seeds(u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Turn uniform draws (B,) into seeds (B,), 0 to 2**53 - 1, which keep all 53 random bits."""
    return (u * 2.0**53).astype(np.int64)


def normal_field(seed: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return standard normal numbers.

    Args:
        seed: A seed, from `draw_seeds`.
        shape: The shape of the field; (H, W, C) for an image.
    """
    return Generator(SFC64(int(seed))).standard_normal(shape, np.float32)


def uniform_field(seed: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return uniform numbers in [0, 1) of a shape, from a seed of `draw_seeds`."""
    return Generator(SFC64(int(seed))).random(shape, np.float32)


def stack_fields(
    make: Callable[[int], NDArray[Any]],
    present: NDArray[np.bool_],
    shape: tuple[int, ...],
    dtype: str = "float32",
) -> NDArray[Any]:
    """Make an array of numbers, the field, for each sample that is present, in several threads.

    NumPy draws normal numbers without holding Python's lock.

    Args:
        make: Called with the sample's position in the batch; returns its field.
        present: The samples that need a field, (B,).
        shape: The shape of each field.
        dtype: The dtype of the fields.

    Returns:
        The fields, (B, *shape). Samples that are not present get zeros, at no cost in time or
        memory.
    """
    fields = np.zeros((len(present), *shape), dtype)

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


def shape_of_pixels(input_spec: Spec) -> tuple[int, int, int]:
    """Return the shape (H, W, C) of images that are all of one size.

    Raises:
        StepIncompatibleError: If the size differs between samples.
    """
    channels = count_channels(input_spec)
    if input_spec.size is None or channels is None:
        raise StepIncompatibleError(
            "it makes numbers for each pixel, so all images must have one size here: put it after "
            "random_resized_crop, or another crop or resize to a fixed size"
        )
    height, width = input_spec.size
    return height, width, channels


def kernel_size(sigma: float) -> int:
    """Return the side of torchvision's blur kernel for `sigma`, both in pixels; 1 for no blur."""
    return int(8.0 * sigma + 1.0) | 1


def make_displacement(
    seed: int, size: tuple[int, int], alpha: tuple[float, float], sigma: tuple[float, float]
) -> Tensor:
    """Return how far each pixel moves, in the format of torchvision's functional.elastic.

    Args:
        seed: The seed, from `draw_seeds`.
        size: [height, width] of the image in pixels, each above half of the larger kernel.
        alpha: The strength along [x, y], in half pixels.
        sigma: The standard deviations [x, y] of the blur in pixels; 0 for none.

    Returns:
        float32 (1, H, W, 2), [x, y] in units of half the image's width and height.
    """
    import torch

    height, width = size
    drawn = torch.from_numpy(uniform_field(seed, (2, height, width))) * 2.0 - 1.0
    parts = [
        (_blur(drawn[n], kernel_size(sigma[n]), sigma) if sigma[n] else drawn[n]) * alpha[n] / side
        for n, side in enumerate((width, height))
    ]
    return torch.stack(parts, -1)[None]


def _blur(field: Tensor, side: int, sigma: tuple[float, float]) -> Tensor:
    """Blur a field (H, W) with a Gaussian of `side` x `side` pixels and sigma [x, y]."""
    import torch
    from torch.nn.functional import conv2d, pad

    pixel = torch.arange(side, dtype=torch.float32) - (side - 1) / 2.0
    across, down = (torch.exp(-0.5 * (pixel / s) ** 2) for s in sigma)
    blurred = pad(field[None, None], [side // 2] * 4, mode="reflect")
    blurred = conv2d(blurred, (across / across.sum()).reshape(1, 1, 1, side))
    return conv2d(blurred, (down / down.sum()).reshape(1, 1, side, 1))[0, 0]
