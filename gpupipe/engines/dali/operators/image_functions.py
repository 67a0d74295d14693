"""DALI operators for functions that look at more than one pixel of an image.

First come the color functions of `COLOR_OPS` that need statistics of the whole image or look at
neighbouring pixels. color.py has those that change each pixel alone, and `FUNCTIONS` lists both.
All other color functions are computed by the formula in their row of `COLOR_OPS`.

Then comes `call_torch`. On a CPU, DALI runs torch for it: in a single thread, for one image after
another. DALI holds the GIL unless torch releases it. So it uses one core, whatever `threads` is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali import math as dali_math
from nvidia.dali.data_node import DataNode

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.engines.dali.operators import color, ops
from gpupipe.engines.dali.operators.color import Operators, PixelFormat, to_pixels
from gpupipe.engines.dali.operators.subgraph import Array, Make
from gpupipe.pipeline.geometry import describe_small
from gpupipe.pipeline.spec_checks import count_channels
from gpupipe.pipeline.step import NoLoweringError, SampleIncompatibleError, Spec

if TYPE_CHECKING:
    from torch import Tensor

_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""PIL's filter SMOOTH, with which torchvision blends."""
_FAR = 1e6
"""In pixels, longer than any side of an image. A region of this length covers the whole side."""
_BORDER: dict[str, Any] = {
    "anchor": [0.0, 0.5, 1.0, 0.5, 0.5, 0.0, 0.5, 1.0],
    "shape": [2.0, _FAR, 2.0, _FAR, _FAR, 2.0, _FAR, 2.0],
    "axes": [0, 1],
    "normalized_anchor": True,
    "centered_anchor": True,
}
"""Arguments of `erase` for the first and last row and column: two pixels wide around each edge."""


def adjust_contrast(image: PixelFormat, factor: Array) -> Operators:
    """Blend each image with the mean of its luma."""

    def make(pixels: DataNode, factor: DataNode) -> DataNode:
        mean = fn.reductions.mean(pixels if image.channels == 1 else color.luma(pixels, image))
        if image.device == "cpu" and image.dtype == "uint8":
            return fn.brightness_contrast(
                pixels,
                contrast=factor,
                contrast_center=mean,
                brightness_shift=color.SHIFT,
                dtype=types.UINT8,
            )
        factor = image.on_device(factor)
        return to_pixels((pixels - mean) * factor + mean, image)

    return Operators(make, (color.limit(factor),))


def scale_and_shift_by_mean(image: PixelFormat, factor: Array, shift: Array) -> Operators:
    """Multiply each value by a factor, and add a share of the mean of all values."""

    def make(pixels: DataNode, factor: DataNode, shift: DataNode) -> DataNode:
        mean = fn.reductions.mean(pixels)
        factor, shift = image.on_device(factor), image.on_device(shift)
        return to_pixels(pixels * factor + mean * shift, image)

    return Operators(make, (color.limit(factor), color.limit(shift)))


def autocontrast(image: PixelFormat) -> Operators:
    """Stretch each channel to the full range; a channel of one value is left alone."""
    max_value = np.float32(255.0 if image.dtype == "uint8" else 1.0)

    def make(pixels: DataNode) -> DataNode:
        low = fn.reductions.min(pixels, axes=(0, 1), keep_dims=True)
        high = fn.reductions.max(pixels, axes=(0, 1), keep_dims=True)
        low, high = (fn.cast(bound, dtype=types.FLOAT) for bound in (low, high))
        is_flat = high == low
        scale = (high > low) * max_value / (high - low + is_flat) + is_flat
        offset = (high > low) * low
        return to_pixels((pixels - offset) * scale, image)

    return Operators(make)


def equalize(image: PixelFormat) -> Operators:
    """Equalize the histogram of each channel, as PIL does.

    Of the pixels of a channel, let c be the number below the value v, and n the number below the
    channel's maximum. PIL maps v to round(c / (n // 255)), and leaves the channel unchanged if
    n // 255 is 0. DALI's equalize is OpenCV's. Applied to the inverted image, and inverted back,
    it maps v to 255 * c / n.
    """

    def make(pixels: DataNode) -> DataNode:
        usual = fn.equalize(pixels ^ color.ALL_BITS) ^ color.ALL_BITS
        highest = fn.reductions.max(pixels, axes=(0, 1), keep_dims=True)
        smaller = fn.cast(pixels < highest, dtype=types.FLOAT)
        steps = fn.reductions.sum(smaller, axes=(0, 1), keep_dims=True) * np.float32(1 / 255)
        whole = dali_math.floor(steps + np.float32(2.0**-12))
        can_divide = whole > np.float32(0.0)
        factor = can_divide * steps / dali_math.max(whole, np.float32(1.0))
        unchanged = pixels * (fn.cast(whole == np.float32(0.0), dtype=types.FLOAT))
        return color.round_to_uint8(usual * factor + unchanged)

    return Operators(make)


def adjust_sharpness(image: PixelFormat, factor: Array) -> Operators:
    """Blend each image with a smoothed copy. The first and last row and column stay unchanged."""

    # The filter is fed, so that `switch` splits it: a constant would reach an empty branch whole,
    # where the operator then fails.
    def make(pixels: DataNode, rest: DataNode, filter: DataNode) -> DataNode:
        smooth = fn.filter(pixels, image.on_device(filter))
        change = smooth * np.float32(1.0) - pixels
        change = fn.erase(change, fill_value=0.0, **_BORDER)
        return to_pixels(pixels + change * image.on_device(rest), image)

    return Operators(make, (1.0 - color.limit(factor), np.tile(_SMOOTH, (len(factor), 1, 1))))


def gaussian_blur(image: PixelFormat, kernel_size: Array, sigma: Array) -> Operators:
    """Blur with a Gaussian. The image is mirrored at its border; the border is not repeated.

    On a CPU, uint8 images go through a filter of one row, then through a filter of one column, and
    are uint8 in between. For kernels of 23 pixels, that takes a 25th of the time of
    `fn.gaussian_blur`.
    """
    height_width, sigma = kernel_size[:, ::-1], sigma[:, ::-1]
    min_size = height_width // 2 + 1
    if image.device == "cpu" and image.dtype == "uint8":
        column, row = (_gaussian(height_width[:, n], sigma[:, n]) for n in (0, 1))
        filters = row[:, None, :], column[:, :, None]
        return Operators(lambda x, row, col: fn.filter(fn.filter(x, row), col), filters, min_size)
    dtype = types.UINT8 if image.dtype == "uint8" else types.FLOAT

    def make(pixels: DataNode, window_size: DataNode, sigma: DataNode) -> DataNode:
        return fn.gaussian_blur(pixels, window_size=window_size, sigma=sigma, dtype=dtype)

    return Operators(make, (height_width, sigma), min_size)


def _gaussian(length: Array, sigma: Array) -> NDArray[np.float32]:
    """Return the kernel of each sample, (B, max length), padded with zeros on both sides.

    `length` and `sigma` are in pixels, (B,). The filter skips zeros. So weights beyond 3.5 sigma
    are set to 0: together they change a uint8 value by less than 1/8.
    """
    half = np.minimum(length // 2, np.ceil(3.5 * sigma))[:, None]
    distance = np.abs(np.arange(length.max()) - length.max() // 2)
    weights = np.where(distance <= half, np.exp(-0.5 * (distance / sigma[:, None]) ** 2), 0.0)
    kernel: NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return kernel


def jpeg(image: PixelFormat, quality: Array) -> Operators:
    """Compress as JPEG, and decode again. On a GPU DALI does not use a codec, but simulates one."""

    def make(pixels: DataNode, quality: DataNode) -> DataNode:
        if image.channels == 3:
            return fn.jpeg_compression_distortion(pixels, quality=quality)
        colors = fn.cat(pixels, pixels, pixels, axis=2)
        return fn.jpeg_compression_distortion(colors, quality=quality)[:, :, 0:1]

    return Operators(make, (quality,))


FUNCTIONS: dict[str, Callable[..., Operators]] = {
    function.__name__: function
    for function in (
        color.invert,
        color.posterize,
        color.solarize,
        color.solarize_add,
        color.adjust_brightness,
        color.adjust_saturation,
        color.adjust_hue,
        color.permute_channels,
        color.scale_and_shift,
        adjust_contrast,
        scale_and_shift_by_mean,
        autocontrast,
        equalize,
        adjust_sharpness,
        gaussian_blur,
        jpeg,
    )
}
"""The functions that have operators of their own, by name; see augment/color_ops.py."""


def find_operators(
    op: str,
    spec: Spec,
    device: ops.Device,
    values: Sequence[Array],
    size: NDArray[np.float64],
    present: NDArray[np.bool_],
) -> tuple[Make | None, tuple[Array, ...]]:
    """Return the operators of function `op`, and the arrays to feed to them.

    The operators are None if the function does not change images of this format.

    Args:
        op: The function's name.
        spec: The spec of the images.
        device: The device of the operators.
        values: The function's arguments, arrays (B, ...).
        size: [height, width] of each image, (B, 2) or (2,).
        present: Which samples of the batch the function applies to, bool (B,).

    Raises:
        NoLoweringError: If the function has no DALI operators and no formula.
        SampleIncompatibleError: If an image is smaller than the function accepts.
    """
    row = COLOR_OPS.get(op)
    function = FUNCTIONS.get(op) or (row and row.formula and partial(color.compute, row.formula))
    if not function:
        raise NoLoweringError(f"the color function '{op}' has no DALI operators")
    dtype = "float32" if spec.dtype == "float16" else spec.dtype
    image = PixelFormat(dtype, device, count_channels(spec) or 1)
    make, arrays, min_size = function(image, *(np.asarray(v) for v in values))
    if min_size is not None:
        small = np.flatnonzero((size < min_size).any(-1) & present)
        if len(small):
            sides = np.broadcast_to(size, min_size.shape)[small[0]]
            raise SampleIncompatibleError(describe_small(op, sides, min_size[small[0]]))
    return make, arrays


def call_torch(
    pixels: DataNode, nodes: Sequence[DataNode], function: "Callable[..., Tensor]"
) -> DataNode:
    """Call `function` on each image when the graph runs, and return the DataNode of the results.

    Args:
        pixels: A DataNode of layout HWC, on the CPU.
        nodes: DataNodes of further arguments, on the CPU.
        function: Called with the image, a tensor (C, H, W), and a NumPy array for each argument.
            The image and the arrays use DALI's memory, which DALI may reuse after the call.
            Returns a tensor (C, H, W).
    """

    def run(image: Array, *values: Array) -> Array:
        import torch

        named = image.view(image.dtype.str)  # DALI's uint64 is a type of C that torch refuses
        output = function(torch.from_numpy(named).permute(2, 0, 1), *values)
        return np.array(output.permute(1, 2, 0).numpy(), order="C")

    return fn.python_function(
        pixels, *nodes, function=run, num_outputs=1, output_layouts=["HWC"], device="cpu"
    )
