"""torchvision's colour functions that change each pixel alone, as DALI operators.

image_functions.py has the functions that look at more than one pixel, and the table of both kinds.

Each function takes the format of the image, and its arguments as NumPy arrays (B, ...), in the
order of its row in `COLOR_OPS` (augment/color_ops.py). It returns Operators: `make`, and the arrays
to feed to the graph. `make(pixels, *nodes)` returns the new pixels. Pixels have the layout HWC.
There is a node for each array: it holds a CPU tensor for each sample.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali import math as dali_math
from nvidia.dali.data_node import DataNode

from gpupipe.augment.color_ops import HIGHEST_LEVEL, LUMA, SCALE_TO_LEVELS
from gpupipe.engines.dali.operators.ops import ALMOST_HALF, Device
from gpupipe.engines.dali.operators.subgraph import Array, Make

ALL_BITS = types.Constant(255, types.UINT8)
_MIDDLE = types.Constant(128, types.UINT8)


class PixelFormat(NamedTuple):
    """The format of the pixels, which is known when the graph is built.

    Attributes:
        dtype: "uint8", or "float32" for floats in 0..1. float16 is computed in float32.
        device: The device of the operators.
        channels: 1 or 3.
    """

    dtype: str
    device: Device
    channels: int

    def on_device(self, node: DataNode) -> DataNode:
        """Move a CPU tensor to the device of the pixels, for arithmetic with the pixels."""
        return node.gpu() if self.device == "gpu" else node


class Operators(NamedTuple):
    """The operators of a color function, for one format of images.

    Attributes:
        make: Called with the pixels and a node for each array. Returns the new pixels. None if the
            function has no effect on this format.
        arrays: The arrays to feed to the graph, (B, ...) each.
        min_size: The smallest [height, width] that the function accepts, (B, 2); None for any.
    """

    make: Make | None
    arrays: tuple[Array, ...] = ()
    min_size: Array | None = None


def to_pixels(values: DataNode, image: PixelFormat) -> DataNode:
    """Convert float32 results to pixels: truncate and clamp for uint8, clamp to 0..1 for floats."""
    if image.dtype == "uint8":
        return round_to_uint8(values - np.float32(ALMOST_HALF))
    return dali_math.clamp(values, 0.0, 1.0)


def luma(pixels: DataNode, image: PixelFormat) -> DataNode:
    """Return the luma of an RGB image; for uint8, truncated to an integer.

    DALI rounds; a shift of nearly -0.5 makes it truncate. `ALMOST_HALF` is not near enough to 0.5:
    a gray of 1 has the luma 0.9999, which must become 0.
    """
    if image.dtype == "uint8":
        return fn.coord_transform(pixels, M=list(LUMA), T=[2.0**-14 - 0.5], dtype=types.UINT8)
    return fn.coord_transform(pixels, M=list(LUMA))


def round_to_uint8(values: DataNode) -> DataNode:
    """Round float32 numbers above -2**23 to integers, and clamp them to uint8.

    Adding 1.5 * 2**23 leaves the rounded number in the lowest bits. On a CPU this takes half of the
    time of `cast` from float32 to uint8, which rounds number by number.
    """
    bits = fn.reinterpret(values + np.float32(1.5 * 2.0**23), dtype=types.INT32)
    return fn.cast(bits - types.Constant(0x4B400000, types.INT32), dtype=types.UINT8)


def blend(images: Sequence[DataNode], weights: Sequence[DataNode], device: str) -> DataNode:
    """Sum uint8 images, each times its weight, in float32; truncate the sum to uint8.

    Args:
        images: Nodes of equal shape.
        weights: For each image, a node of one float32 per sample, on the CPU.
        device: The device of the images.
    """
    factors = [weight.gpu() for weight in weights] if device == "gpu" else weights
    total = images[0] * factors[0] - np.float32(ALMOST_HALF)
    for image, factor in zip(images[1:], factors[1:], strict=True):
        total = total + image * factor
    return round_to_uint8(total)


def add(pixels: DataNode, values: DataNode, dtype: str, clip: bool) -> DataNode:
    """Add int16 numbers to uint8 pixels, or float32 numbers to float32 pixels.

    Args:
        pixels: The images.
        values: Arrays of the same shapes, on the same device.
        dtype: The dtype of the images; uint8 is clamped to 0..255.
        clip: Whether floats are clamped to 0..1.
    """
    total = pixels + values
    if dtype == "uint8":
        return fn.cast(total, dtype=types.UINT8)
    return dali_math.clamp(total, 0.0, 1.0) if clip else total


def limit(factor: Array) -> Array:
    """Limit a factor to 10,000, so that results stay in the range that `round_to_uint8` accepts.

    Larger factors would give the same pixels, because the results are clamped.
    """
    limited: Array = np.clip(factor, -1e4, 1e4)
    return limited


def compute(formula: Make, image: PixelFormat, *values: Array) -> Operators:
    """Return operators that compute a formula on pixels in 0..1, as `color_ops.apply` does.

    uint8 pixels are scaled to 0..1 before, and back afterwards.
    """

    def make(pixels: DataNode, *nodes: DataNode) -> DataNode:
        is_uint8 = image.dtype == "uint8"
        scaled = pixels * np.float32(1 / HIGHEST_LEVEL) if is_uint8 else pixels
        result = formula(scaled, *(image.on_device(node) for node in nodes))
        result = dali_math.clamp(result, 0.0, 1.0)
        if not is_uint8:
            return result
        return round_to_uint8(dali_math.floor(result * np.float32(SCALE_TO_LEVELS)))

    return Operators(make, values)


def invert(image: PixelFormat) -> Operators:
    """Return operators that compute 255 - x for uint8, and 1 - x for floats."""
    if image.dtype == "uint8":
        return Operators(lambda pixels: pixels ^ ALL_BITS)
    return Operators(lambda pixels: np.float32(1.0) - pixels)


def posterize(image: PixelFormat, bits: Array) -> Operators:
    """Keep the highest `bits` bits of each uint8 value."""

    def make(pixels: DataNode, mask: DataNode) -> DataNode:
        return pixels & image.on_device(fn.cast(mask, dtype=types.UINT8))

    return Operators(make, (255 - (255 >> bits),))


def solarize(image: PixelFormat, threshold: Array) -> Operators:
    """Invert all values of at least `threshold`."""

    def make(pixels: DataNode, threshold: DataNode) -> DataNode:
        reach = pixels >= image.on_device(threshold)
        if image.dtype == "uint8":
            return pixels ^ (reach * ALL_BITS)
        return pixels + reach * (np.float32(1.0) - pixels * np.float32(2.0))

    return Operators(make, (threshold,))


def solarize_add(image: PixelFormat, values: Array) -> Operators:
    """Add `values` to those uint8 pixels that are below 128."""

    def make(pixels: DataNode, values: DataNode) -> DataNode:
        added = image.on_device(fn.cast(values, dtype=types.UINT8))
        return pixels + (pixels < _MIDDLE) * added

    return Operators(make, (values,))


def adjust_brightness(image: PixelFormat, factor: Array) -> Operators:
    """Multiply each value by the factor of its sample."""

    def make(pixels: DataNode, factor: DataNode) -> DataNode:
        if image.dtype == "uint8":
            return fn.brightness_contrast(
                pixels, brightness=factor, brightness_shift=SHIFT, dtype=types.UINT8
            )
        return to_pixels(pixels * image.on_device(factor), image)

    return Operators(make, (factor,))


SHIFT = -ALMOST_HALF / 255
"""The brightness_shift with which brightness_contrast truncates its uint8 results."""


def adjust_saturation(image: PixelFormat, factor: Array) -> Operators:
    """Blend each pixel with its luma. For uint8, the luma is truncated to an integer first.

    With a factor above 2, a few uint8 pixels differ from torchvision's by more than 1. Their luma
    is so near to an integer that rounding errors of float32 change the truncated value.
    """
    if image.channels == 1:
        return Operators(None)

    def make(pixels: DataNode, factor: DataNode) -> DataNode:
        factor = image.on_device(factor)
        gray = luma(pixels, image)
        rest = gray * (np.float32(1.0) - factor)
        if image.dtype == "uint8":  # shifted before the sum: one pass less over three channels
            return round_to_uint8(pixels * factor + (rest - np.float32(ALMOST_HALF)))
        return to_pixels(pixels * factor + rest, image)

    return Operators(make, (limit(factor),))


def adjust_hue(image: PixelFormat, factor: Array) -> Operators:
    """Turn the hue by `factor` of a full turn, in HSV, as torchvision's formulas do."""
    if image.channels == 1:
        return Operators(None)
    return Operators(
        lambda pixels, turn: _turn_hue(pixels, image.on_device(turn), image), (6.0 * factor,)
    )


def _turn_hue(pixels: DataNode, turn: DataNode, image: PixelFormat) -> DataNode:
    """Turn the hue by `turn` sixths of a full turn.

    Let h be the turned hue in sixths, v the maximum of the three channels, and c their maximum
    minus their minimum. A channel is then v - c * clamp(distance, 0, 1). The distance is
    2 - |h - 3| for red, |h - 2| - 1 for green, and |h - 4| - 1 for blue.
    """
    planes = fn.transpose(pixels, perm=[2, 0, 1]) * np.float32(1.0)
    red, green, blue = (planes[n] for n in range(3))
    value = dali_math.max(dali_math.max(red, green), blue)
    spread = value - dali_math.min(dali_math.min(red, green), blue)
    is_red = red == value
    is_green = (green == value) & (red < value)
    is_blue = (red < value) & (green < value)
    numerator = is_red * (green - blue) + is_green * (blue - red) + is_blue * (red - green)
    sector = is_green * np.float32(2.0) + is_blue * np.float32(4.0) + turn
    hue = numerator / (spread + (spread == np.float32(0.0))) + sector
    hue = hue - dali_math.floor(hue * np.float32(1 / 6)) * np.float32(6.0)
    distances = (
        np.float32(2.0) - dali_math.abs(hue - np.float32(3.0)),
        dali_math.abs(hue - np.float32(2.0)) - np.float32(1.0),
        dali_math.abs(hue - np.float32(4.0)) - np.float32(1.0),
    )
    turned = fn.stack(*(value - spread * dali_math.clamp(d, 0.0, 1.0) for d in distances), axis=0)
    if image.dtype == "uint8":
        scale = np.float32(SCALE_TO_LEVELS / HIGHEST_LEVEL)
        turned = to_pixels(turned * scale, image)
    return fn.reinterpret(fn.transpose(turned, perm=[1, 2, 0]), layout="HWC")


def permute_channels(image: PixelFormat, permutation: Array) -> Operators:
    """Take channel n of the result from channel permutation[n] of the input."""
    if image.channels == 1:
        return Operators(None)
    dtype = types.UINT8 if image.dtype == "uint8" else types.FLOAT

    def make(pixels: DataNode, matrix: DataNode) -> DataNode:
        return fn.coord_transform(pixels, M=matrix, dtype=dtype)

    return Operators(make, (np.eye(image.channels)[permutation],))


def scale_and_shift(image: PixelFormat, factor: Array, shift: Array) -> Operators:
    """Multiply each value by a factor, and add a share of the largest value of the dtype."""
    highest = np.float32(HIGHEST_LEVEL if image.dtype == "uint8" else 1.0)

    def make(pixels: DataNode, factor: DataNode, offset: DataNode) -> DataNode:
        return to_pixels(pixels * image.on_device(factor) + image.on_device(offset), image)

    return Operators(make, (limit(factor), limit(shift) * highest))
