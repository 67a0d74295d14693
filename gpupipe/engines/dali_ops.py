"""The DALI operators that gpupipe uses on pixels, with the arguments that make them agree with torchvision.

Nodes of images have layout HWC. Sizes, windows and points are float64 DataNodes of shape (2,) or pairs of numbers.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from nvidia.dali import fn, types

from gpupipe.arithmetic import cast, constant_node, dali_type, floor, is_node, maximum, minimum, vector

Layout = Literal["CHW", "HWC"]
Fill = tuple[float, ...]

_MODES = {"rgb": types.RGB, "gray": types.GRAY}
_INTERPOLATION = {"nearest": types.INTERP_NN, "bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}
_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_BORDERS = {"edge": "replicate", "reflect": "reflect_101", "symmetric": "reflect"}
_TO_LEVELS = 255.999
"""torchvision's factor from floats to uint8, 256 - 1e-3, after which it truncates (v2.functional.to_dtype)."""


def pair(values: Any) -> Any:
    """A DataNode as it is; two numbers as a float64 DataNode."""
    return values if is_node(values) else constant_node(values)


def _whole(values: Any) -> Any:
    """Pixel counts as integers: a list, or an int32 DataNode."""
    return cast(values, "int32") if is_node(values) else [int(v) for v in values]


def read(paths: Any) -> Any:
    """The bytes of files, copied: mapping them into memory takes 5 % more of an LFW epoch, and DALI keeps a record of every file that was ever mapped."""
    return fn.io.file.read(paths, dont_use_mmap=True)


def encoded_shape(data: Any, exif: bool) -> Any:
    """[height, width, channels] from the header of an image file."""
    return fn.peek_image_shape(data, adjust_orientation=exif)


def after(data: Any, shape: Any) -> Any:
    """`data` as they are, but not before `shape` is known, so that what works on them is not run where that fails.

    DALI 2.4's image decoder crashes (SIGSEGV) on a header that it cannot parse, in a batch of 32 and more: it sets samples up on several
    threads, and where its own one throws, the others go on in a frame that is gone. encoded_shape fails on the same headers, safely.
    """
    return fn.reshape(data, shape=minimum(shape[:1], -1))


def pixel_shape(pixels: Any) -> Any:
    """[height, width, channels] of decoded pixels."""
    return pixels.shape(device="cpu")


def size_of(shape: Any) -> Any:
    """[height, width] of a shape."""
    return cast(shape[:2], "float64")


def reversed_size_of(shape: Any) -> Any:
    """[width, height] of a shape."""
    return cast(fn.stack(shape[1], shape[0]), "float64")


def decode(data: Any, device: str, mode: str, exif: bool, options: dict[str, Any], window: tuple[Any, Any] | None = None) -> Any:
    """uint8 pixels; `window` = (anchor, shape) decodes only that region."""
    place = {"device": "mixed" if device == "gpu" else "cpu", "output_type": _MODES[mode], "adjust_orientation": exif}
    if window is None:
        return fn.decoders.image(data, jpeg_fancy_upsampling=True, **place, **options)
    start, shape = (_whole(w) for w in window)
    return fn.decoders.image_slice(data, start=start, shape=shape, axes=[0, 1], jpeg_fancy_upsampling=True, **place, **options)


def cut(pixels: Any, anchor: Any, shape: Any, fill: Fill | None) -> Any:
    """A window; outside the image is `fill`, or an error where that is None."""
    policy = {"out_of_bounds_policy": "error"} if fill is None else {"out_of_bounds_policy": "pad", "fill_values": list(fill)}
    return fn.slice(pixels, start=_whole(anchor), shape=_whole(shape), axes=[0, 1], **policy)


def resize(
    pixels: Any, size: Any, shape: Any, interpolation: str, antialias: bool, region: tuple[Any, Any] | None = None, origin: Any = None
) -> Any:  # fmt: skip
    """An image of `size` resampled to `shape`, or of that only the `region` (anchor, shape).

    `origin`: `pixels` holds not the whole image but what begins there, [top, left].
    """
    kind = {"interp_type": _INTERPOLATION[interpolation], "antialias": antialias, "subpixel_scale": False}
    target = shape if region is None else region[1]
    kind["size"] = cast(target, "float32") if is_node(target) else [float(v) for v in target]
    if region is None and interpolation != "nearest":
        return fn.resize(pixels, **kind)
    start, end = source_region(size, shape, region)
    if interpolation == "nearest":
        shift = pair(size) / pair(shape) * _NEAREST_SHIFT
        start, end = start - shift, end - shift
    if origin is not None:
        start, end = start - origin, end - origin
    return fn.resize(pixels, roi_start=cast(start, "float32"), roi_end=cast(end, "float32"), **kind)


_NEAREST_SHIFT = 0.5 - 2.0**-12
"""torchvision's "nearest" takes floor(x * scale), DALI's the pixel under the centre: half an output pixel apart, in source pixels.
A hair less than the half, so that where x * scale is a whole number, rounding does not fall below it."""


def source_region(size: Any, shape: Any, region: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """Corners, in pixels of the source, of a region of the resized image."""
    if region is None:
        return pair(size) * 0.0, pair(size)
    scale = pair(size) / pair(shape)
    return pair(region[0]) * scale, (pair(region[0]) + pair(region[1])) * scale


def needed_window(size: Any, shape: Any, region: tuple[Any, Any], interpolation: str) -> tuple[Any, Any]:
    """The window (anchor, shape) of the source that a resize needs to make `region`: its filter looks beyond the edge."""
    start, end = source_region(size, shape, region)
    scale = maximum(pair(size) / pair(shape), pair((1.0, 1.0)))
    margin = floor(scale * _FILTER_RADIUS[interpolation]) + 2.0
    low = maximum(floor(start) - margin, pair((0.0, 0.0)))
    high = minimum(floor(end) + 1.0 + margin, pair(size))
    return low, high - low


def flip(pixels: Any, horizontal: Any, vertical: Any) -> Any:
    """Mirrored along each axis whose flag (a DataNode, or None for never) is 1."""
    return fn.flip(pixels, horizontal=0 if horizontal is None else horizontal, vertical=0 if vertical is None else vertical)


def warp_name(device: str) -> str:
    """The operator that `warp` uses on a device."""
    return "warp_affine" if device == "gpu" else "experimental.warp_perspective"


def warp(pixels: Any, device: str, linear: Any, source: Any, output: Any, interpolation: str, fill: Fill, shape: Any = None) -> Any:
    """The output pixel at [x, y] lies at linear @ ([x, y] - output) + source; pixel corners are at integers."""
    moved = fn.reductions.sum(cast(linear * output, "float32"), axes=[1], keep_dims=True)
    offset = fn.reshape(source, shape=[2, 1]) - moved
    matrix = fn.cat(cast(linear, "float32"), cast(offset, "float32"), axis=1)
    size = {} if shape is None else {"size": cast(shape, "float32")}
    if device == "gpu" and len(set(fill)) == 1:
        return fn.warp_affine(pixels, matrix=matrix, interp_type=_INTERPOLATION[interpolation], fill_value=fill[0], **size)
    return _perspective(pixels, matrix, interpolation, fill_value=list(fill), **size)


def pad(pixels: Any, size: Any, before: Any, after: Any, mode: str) -> Any:
    """Pixels added around the image, made of it: an identity warp that moves it, with the border mode that is meant."""
    one, zero = vector(size, 1.0, 0.0), vector(size, 0.0, 1.0)
    moved = fn.stack(before[1] * -1.0, before[0] * -1.0)
    matrix = cast(fn.stack(one, zero, moved, axis=1), "float32")
    return _perspective(pixels, matrix, "nearest", border_mode=_BORDERS[mode], size=cast(size + before + after, "float32"))


def _perspective(pixels: Any, matrix: Any, interpolation: str, **options: Any) -> Any:
    square = fn.cat(matrix, types.Constant(np.array([[0, 0, 1]], np.float32)), axis=0)
    return fn.experimental.warp_perspective(pixels, matrix=square, interp_type=_INTERPOLATION[interpolation], **options)


def to_uint8(pixels: Any, scale: bool) -> Any:
    """Floats to levels, truncated as torchvision does."""
    levels = pixels * np.float32(_TO_LEVELS) if scale else pixels
    return fn.cast(floor(levels), dtype=types.UINT8)


def normalize(
    pixels: Any,
    dtype: str,
    layout: Layout,
    mean: Fill = (0.0,),
    std: Fill = (1.0,),
    mirror: Any = None,
    window: tuple[Any, Any] | None = None,
) -> Any:
    """(x - mean) / std as `dtype` in `layout`, after cutting `window` = (anchor, shape) and mirroring left and right."""
    options: dict[str, Any] = {} if mirror is None else {"mirror": mirror}
    if window is not None:
        anchor, shape = window
        room = maximum(size_of(pixel_shape(pixels)) - pair(shape), pair((1.0, 1.0)))
        share = cast(pair(anchor) / room, "float32")
        extent = cast(pair(shape), "float32")
        options |= {"crop_pos_y": share[0], "crop_pos_x": share[1], "crop_h": extent[0], "crop_w": extent[1]}
    return fn.crop_mirror_normalize(
        pixels, dtype=dali_type(dtype), output_layout=layout, mean=list(mean), std=list(std), **options
    )  # fmt: skip


def planes(pixels: Any) -> Any:
    """HWC to CHW."""
    return fn.transpose(pixels, perm=[2, 0, 1])
