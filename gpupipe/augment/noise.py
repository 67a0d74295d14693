"""Random numbers for each pixel, from one drawn seed per sample.

All engines add the numbers of `normal_field`, so they add the same noise. DALI gets these
numbers as an argument, so all images of a batch must have one size, known before the run.

The numbers for a 224x224x3 image take 1.2 ms on one core, and 0.6 MB (on a Xeon server CPU).

The seed is a draw, so it is the same in every run. Its numbers are the same as long as NumPy keeps
the methods of `Generator`: NEP 19 allows them to change in a new release of NumPy.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from gpupipe.pipeline.spec_checks import count_channels
from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.runtime.ranks import cores_of_rank

SPEED_ADVICE = (
    "noise for each pixel is made on the CPU, 1.2 ms for 224x224x3: add it to smaller images, or "
    "to fewer samples, inside random_apply"
)

ANY_NUMBER = (float("-inf"),)
"""Tells `spec_checks.add_fill` that noise without clamping can make any number."""


def draw_seeds(u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Turn uniform draws (B,) into seeds (B,), 0 to 2**53 - 1, which keep all 53 random bits."""
    return (u * 2.0**53).astype(np.int64)


def normal_field(seed: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return float32 numbers drawn from the standard normal distribution.

    Args:
        seed: A seed, from `draw_seeds`.
        shape: The shape of the result; (H, W, C) for an image.
    """
    return Generator(SFC64(int(seed))).standard_normal(shape, np.float32)


def uniform_field(seed: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return an array of `shape` of uniform float32 numbers in [0, 1); `draw_seeds` makes seeds."""
    return Generator(SFC64(int(seed))).random(shape, np.float32)


def stack_fields(
    make: Callable[[int], NDArray[Any]],
    present: NDArray[np.bool_],
    shape: tuple[int, ...],
    dtype: str = "float32",
) -> NDArray[Any]:
    """Make a field, an array of numbers, for each sample that needs one, in several threads.

    Threads help, because NumPy draws normal numbers without holding the GIL.

    Args:
        make: Called with the sample's position in the batch; returns its field.
        present: Whether each sample needs a field, (B,).
        shape: The shape of each field.
        dtype: The dtype of the fields.

    Returns:
        The fields, (B, *shape). Samples that need none get zeros, at no cost in time or memory.
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
