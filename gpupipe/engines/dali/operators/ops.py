"""DALI's operators on pixels, with the arguments that make them agree with torchvision.

Nodes of images have layout HWC. Arguments such as windows, sizes, matrices and flags are DataNodes,
or plain numbers if they are the same for all samples. DALI ignores arguments that are None.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.pipeline.step import NoLoweringError

Device = Literal["cpu", "gpu"]
Layout = Literal["CHW", "HWC"]
Fill = tuple[float, ...]
Floats = NDArray[np.float64]
Argument: TypeAlias = "DataNode | float | Sequence[float] | None"
"""An argument of an operator: a DataNode with a value for each sample, or one value for all."""

_MODES = {"rgb": types.RGB, "gray": types.GRAY}
INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
}


def find_interpolation(name: str) -> Any:
    """Return DALI's code of an interpolation.

    Raises:
        NoLoweringError: There is no interpolation of that name.
    """
    if name not in INTERPOLATION:
        raise NoLoweringError(
            f"there is no interpolation '{name}': pass one of {', '.join(INTERPOLATION)}"
        )
    return INTERPOLATION[name]


BORDERS = {"edge": "replicate", "reflect": "reflect_101", "symmetric": "reflect"}
"""DALI's border modes, by torchvision's padding modes."""
ALMOST_HALF = 0.5 - 2.0**-12
"""Subtracted before DALI rounds, so that it truncates."""
_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_NEAREST_SHIFT = 0.5 - 2.0**-12
"""Shifts DALI's nearest-neighbour grid onto torchvision's, in output pixels. torchvision reads the
source pixel floor(x * scale). DALI reads the one under the centre, half an output pixel further.
The shift is 2**-12 less than the half: if x * scale is a whole number, rounding errors must not
lead to the pixel before.
"""
DTYPES = {"uint8": types.UINT8, "float16": types.FLOAT16, "float32": types.FLOAT}


def argument(values: ArrayLike, ndim: int, dtype: DTypeLike) -> Any:
    """Convert values with `ndim` axes per sample to an argument of an operator.

    Values with a batch axis become an array to feed; all other values become plain numbers.
    """
    array = np.asarray(values).astype(dtype)
    if array.ndim > ndim:
        return array
    return array.ravel().tolist() if ndim else array.tolist()


def decode(
    data: DataNode,
    device: str,
    how: DecodeOptions,
    options: Mapping[str, Any],
    anchor: Argument = None,
    shape: Argument = None,
) -> DataNode:
    """Decode the bytes of image files: whole images, or only a window of each.

    Args:
        data: The encoded bytes.
        device: "cpu", or "gpu" for the mixed decoder.
        how: The color mode, the dtype, and whether to apply the EXIF orientation.
        options: Further arguments of DALI's decoder.
        anchor: [top, left] of the window, or None for whole images.
        shape: [height, width] of the window.
    """
    arguments = {
        "device": "mixed" if device == "gpu" else "cpu",
        "output_type": _MODES[how.mode],
        "adjust_orientation": how.apply_exif,
        "dtype": types.UINT16 if how.dtype == "uint16" else types.UINT8,
        "jpeg_fancy_upsampling": True,
        **options,
    }
    if anchor is None:
        return fn.decoders.image(data, **arguments)
    return fn.decoders.image_slice(data, start=anchor, shape=shape, axes=[0, 1], **arguments)


def cut(
    pixels: DataNode,
    anchor: Argument,
    shape: Argument,
    fill: Fill | None,
    axes: Sequence[int] = (0, 1),
) -> DataNode:
    """Cut the window that begins at `anchor` and has the size `shape` along `axes`.

    Pixels outside the image get `fill`. If `fill` is None, DALI raises an error for them.
    """
    return fn.slice(
        pixels,
        start=anchor,
        shape=shape,
        axes=list(axes),
        out_of_bounds_policy="error" if fill is None else "pad",
        fill_values=fill and list(fill),
    )


def resize(
    pixels: DataNode,
    shape: Argument,
    start: Argument = None,
    end: Argument = None,
    *,
    interpolation: str,
    antialias: bool,
) -> DataNode:
    """Resize images, or only the region from `start` to `end` in source pixels, to `shape`.

    At the edges of the region, the filter reads the pixels outside of the region.
    """
    return fn.resize(
        pixels,
        size=shape,
        roi_start=start,
        roi_end=end,
        interp_type=find_interpolation(interpolation),
        antialias=antialias,
        subpixel_scale=False,
    )


def resize_arguments(
    size: Floats,
    shape: Floats,
    interpolation: str,
    region: tuple[Floats, Floats] | None = None,
    origin: Floats | float = 0.0,
) -> tuple[Any, ...]:
    """Return the arguments that `resize` takes after `pixels`: shape, and start and end if needed.

    Args:
        size: The size of the source images.
        shape: The size to which the whole source is resized.
        interpolation: "nearest", "bilinear" or "bicubic".
        region: (anchor, shape) of the region, in pixels of the resized images; None for the whole.
        origin: [top, left] of the decoded windows in the source images; 0 for whole images.
    """
    output = argument(shape if region is None else region[1], 1, np.float32)
    if region is None and interpolation != "nearest":
        return (output,)
    scale = size / shape
    anchor, extent = region or (np.zeros(2), shape)
    shift = scale * _NEAREST_SHIFT if interpolation == "nearest" else 0.0
    corners = anchor * scale - shift, (anchor + extent) * scale - shift
    return (output, *(argument(corner - origin, 1, np.float32) for corner in corners))


def needed_window(
    size: Floats, shape: Floats, interpolation: str, region: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Return the window of the source that a resize reads for a region of its output.

    The window includes a margin for the filter, which reads pixels beyond the region's edges.

    Args:
        size: The size of the source images.
        shape: The size to which the whole source is resized.
        interpolation: "nearest", "bilinear" or "bicubic".
        region: (anchor, shape) of the region, in pixels of the resized images.

    Returns:
        (anchor, shape) of the window, in whole source pixels.
    """
    scale = size / shape
    start, end = region[0] * scale, (region[0] + region[1]) * scale
    margin = np.floor(np.maximum(scale, 1.0) * _FILTER_RADIUS[interpolation]) + 2.0
    low = np.maximum(np.floor(start) - margin, 0.0)
    high = np.minimum(np.floor(end) + 1.0 + margin, size)
    return low, high - low


def flip(pixels: DataNode, horizontal: Argument, vertical: Argument) -> DataNode:
    """Mirror along each axis whose flag is 1."""
    return fn.flip(pixels, horizontal=horizontal, vertical=vertical)


def flip_argument(flag: NDArray[np.bool_] | None) -> Any:
    """Convert the flags of samples to an argument of `flip`; None flips no sample."""
    return 0 if flag is None else argument(flag, 0, np.int32)


def warp_affine(
    pixels: DataNode, matrix: Argument, size: Argument, interpolation: str, fill: float
) -> DataNode:
    """Warp with an affine matrix.

    Args:
        pixels: The image.
        matrix: (2, 3), from output to source coordinates.
        size: [height, width] of the output, or None for the size of the image.
        interpolation: "nearest", "bilinear" or "bicubic".
        fill: The value of pixels outside the image, in all channels.
    """
    mode = find_interpolation(interpolation)
    return fn.warp_affine(pixels, matrix=matrix, interp_type=mode, fill_value=fill, size=size)


def warp_perspective(
    pixels: DataNode, matrix: Argument, size: Argument, interpolation: str, **border: Any
) -> DataNode:
    """Warp with a matrix (3, 3) from output to source coordinates.

    On a CPU this is faster than `warp_affine`. With a `size` of None, the image keeps its size.
    `border` is either fill_value, with a number per channel, or border_mode, with a value of
    BORDERS.
    """
    return fn.experimental.warp_perspective(
        pixels, matrix=matrix, size=size, interp_type=find_interpolation(interpolation), **border
    )


def erase(pixels: DataNode, anchor: Argument, shape: Argument, value: Fill) -> DataNode:
    """Set the window at `anchor`, of the size `shape`, to `value`: one number per channel."""
    return fn.erase(pixels, anchor=anchor, shape=shape, axes=[0, 1], fill_value=list(value))


def normalize(
    pixels: DataNode,
    window: Sequence[Argument] = (),
    mirror: Argument = None,
    *,
    dtype: str,
    layout: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> DataNode:
    """Cut a window, mirror it left to right, and compute (x - mean) / std.

    Args:
        pixels: The image.
        window: (top, left, height, width), or () for the whole image. Height and width are pixels.
            Top is 0 for a window at the image's upper edge, and 1 for one at its lower edge. Left
            is 0 at the left edge, and 1 at the right edge.
        mirror: 1 to mirror a sample, or None to mirror none.
        dtype: The dtype of the output.
        layout: The layout of the output.
        mean: One number, or one per channel.
        std: One number, or one per channel.
    """
    top, left, height, width = window or (None,) * 4
    return fn.crop_mirror_normalize(
        pixels,
        crop_pos_y=top,
        crop_pos_x=left,
        crop_h=height,
        crop_w=width,
        mirror=mirror,
        dtype=DTYPES[dtype],
        output_layout=layout,
        mean=list(mean),
        std=list(std),
    )


def transform_channels(pixels: DataNode, matrix: Argument, rows: int, dtype: str) -> DataNode:
    """Multiply the channels of each pixel by a matrix with `rows` rows; truncate uint8 results."""
    shift, output = (-ALMOST_HALF, types.UINT8) if dtype == "uint8" else (0.0, types.FLOAT)
    return fn.coord_transform(pixels, M=matrix, T=[shift] * rows, dtype=output)


def repeat_channel(pixels: DataNode) -> DataNode:
    """Repeat the single channel of an image three times."""
    return fn.color_space_conversion(pixels, image_type=types.GRAY, output_type=types.RGB)


def planes(pixels: DataNode) -> DataNode:
    """Transpose HWC to CHW."""
    return fn.transpose(pixels, perm=[2, 0, 1])


def swap_rows_and_columns(pixels: DataNode) -> DataNode:
    """Transpose the first two axes of HWC; the layout stays HWC."""
    return fn.transpose(pixels, perm=[1, 0, 2], transpose_layout=False)


def split(node: DataNode, predicate: DataNode) -> DataNode:
    """Split a batch in two: the samples for which `predicate` is true, and all other samples.

    Copies nothing. DALI uses the operators of `split` and `merge` for `if` in its pipelines.
    """
    return fn._conditional.split(node, predicate=predicate)  # type: ignore[attr-defined]


def merge(true: DataNode, false: DataNode, predicate: DataNode) -> DataNode:
    """Merge the two batches that `split` returned, in the original order of the samples."""
    return fn._conditional.merge(true, false, predicate=predicate)  # type: ignore[attr-defined]
