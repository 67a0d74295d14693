"""DALI's operators on pixels, with the arguments that make them agree with torchvision.

Nodes of images have layout HWC. Arguments such as windows, sizes, matrices and flags are DataNodes,
or plain numbers if they are the same for all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from nvidia.dali import fn, types

from gpupipe.decoders.chain import DecodeOptions

Layout = Literal["CHW", "HWC"]
Fill = tuple[float, ...]

_MODES = {"rgb": types.RGB, "gray": types.GRAY}
_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
}
_BORDERS = {"edge": "replicate", "reflect": "reflect_101", "symmetric": "reflect"}
_ALMOST_HALF = 0.5 - 2.0**-12
"""Subtracted before DALI rounds, so that it truncates."""
DTYPES = {"uint8": types.UINT8, "float16": types.FLOAT16, "float32": types.FLOAT}


def read(paths: Any) -> Any:
    """Read files, with a copy.

    Memory-mapped reading makes an LFW epoch 5 % slower, and DALI keeps a record of every file that
    it has ever mapped.
    """
    return fn.io.file.read(paths, dont_use_mmap=True)


def decode(data: Any, device: str, how: DecodeOptions, options: dict[str, Any]) -> Any:
    """Decode whole images."""
    return fn.decoders.image(data, jpeg_fancy_upsampling=True, **_decoding(device, how), **options)


def decode_window(
    data: Any, anchor: Any, shape: Any, device: str, how: DecodeOptions, options: dict[str, Any]
) -> Any:
    """Decode only a window of each image; anchor [top, left], shape [height, width]."""
    window = {"start": anchor, "shape": shape, "axes": [0, 1]}
    return fn.decoders.image_slice(
        data, jpeg_fancy_upsampling=True, **window, **_decoding(device, how), **options
    )


def _decoding(device: str, how: DecodeOptions) -> dict[str, Any]:
    dtype = types.UINT16 if how.dtype == "uint16" else types.UINT8
    options = {
        "output_type": _MODES[how.mode],
        "adjust_orientation": how.apply_exif,
        "dtype": dtype,
    }
    return {"device": "mixed" if device == "gpu" else "cpu", **options}


def cut(
    pixels: Any, anchor: Any, shape: Any, fill: Fill | None, axes: Sequence[int] = (0, 1)
) -> Any:
    """Cut a window along `axes`.

    Args:
        pixels: The image.
        anchor: The window's first corner.
        shape: The window's size.
        fill: The value of pixels outside the image. With None they are a DALI error.
        axes: The axes of `anchor` and `shape`.
    """
    policy = (
        {"out_of_bounds_policy": "error"}
        if fill is None
        else {"out_of_bounds_policy": "pad", "fill_values": list(fill)}
    )
    return fn.slice(pixels, start=anchor, shape=shape, axes=list(axes), **policy)


def resize(pixels: Any, shape: Any, interpolation: str, antialias: bool) -> Any:
    """Resize to `shape`, [height, width]."""
    return fn.resize(pixels, size=shape, **_resampling(interpolation, antialias))


def resize_region(
    pixels: Any, shape: Any, start: Any, end: Any, interpolation: str, antialias: bool
) -> Any:
    """Resize the region from `start` to `end`, in source pixels, to `shape`.

    At the region's edges the filter reads the pixels outside it.
    """
    return fn.resize(
        pixels, size=shape, roi_start=start, roi_end=end, **_resampling(interpolation, antialias)
    )


def _resampling(interpolation: str, antialias: bool) -> dict[str, Any]:
    return {
        "interp_type": _INTERPOLATION[interpolation],
        "antialias": antialias,
        "subpixel_scale": False,
    }


def flip(pixels: Any, horizontal: Any, vertical: Any) -> Any:
    """Mirror along each axis whose flag is 1."""
    return fn.flip(pixels, horizontal=horizontal, vertical=vertical)


def warp_affine(pixels: Any, matrix: Any, size: Any, interpolation: str, fill: float) -> Any:
    """Warp with an affine matrix.

    Args:
        pixels: The image.
        matrix: (2, 3), from output to source coordinates.
        size: [height, width] of the output, or None for the size of the image.
        interpolation: "nearest", "bilinear" or "bicubic".
        fill: The value of pixels outside the image, for all channels.
    """
    return fn.warp_affine(
        pixels,
        matrix=matrix,
        interp_type=_INTERPOLATION[interpolation],
        fill_value=fill,
        **_sized(size),
    )


def warp_perspective(pixels: Any, matrix: Any, size: Any, interpolation: str, fill: Fill) -> Any:
    """Warp as `warp_affine` does, but with a matrix (3, 3) and one fill value per channel.

    On a CPU it is faster than `warp_affine`.
    """
    kind = {"interp_type": _INTERPOLATION[interpolation], "fill_value": list(fill)}
    return fn.experimental.warp_perspective(pixels, matrix=matrix, **kind, **_sized(size))


def warp_border(pixels: Any, matrix: Any, size: Any, mode: str) -> Any:
    """Shift by whole pixels, and extrapolate beyond the image's border.

    `mode` is "edge", "reflect" or "symmetric", with torchvision's meaning.
    """
    return fn.experimental.warp_perspective(
        pixels,
        matrix=matrix,
        interp_type=types.INTERP_NN,
        border_mode=_BORDERS[mode],
        **_sized(size),
    )


def remap(pixels: Any, x: Any, y: Any, interpolation: str) -> Any:
    """Take each pixel from the place (x, y), where whole numbers are centres of pixels.

    Args:
        pixels: The image, of 1 or 3 channels, on a GPU. DALI has no such operator on a CPU.
        x: float32 nodes of the image's height and width, on the GPU.
        y: The same for y.
        interpolation: "nearest" or "bilinear".
    """
    return fn.experimental.remap(
        pixels, x, y, interp=_INTERPOLATION[interpolation], pixel_origin="center"
    )


def erase(pixels: Any, anchor: Any, shape: Any, value: Fill) -> Any:
    """Set the window at `anchor` of `shape`, [height, width], to one value per channel."""
    return fn.erase(pixels, anchor=anchor, shape=shape, axes=[0, 1], fill_value=list(value))


def _sized(size: Any) -> dict[str, Any]:
    return {} if size is None else {"size": size}


def normalize(
    pixels: Any,
    mirror: Any,
    share: tuple[Any, Any],
    extent: tuple[Any, Any],
    dtype: str,
    layout: str,
    mean: Fill,
    std: Fill,
) -> Any:
    """Cut a window, mirror it left to right, and compute (x - mean) / std.

    Args:
        pixels: The image.
        mirror: 1 to mirror a sample, or None to mirror none.
        share: (top, left) of the window, relative to the room beside it: from 0 to 1.
        extent: (height, width) of the window, or (None, None) for the whole image.
        dtype: The dtype of the output.
        layout: The layout of the output.
        mean: One number, or one per channel.
        std: One number, or one per channel.
    """
    options: dict[str, Any] = {} if mirror is None else {"mirror": mirror}
    if extent[0] is not None:
        options |= {
            "crop_pos_y": share[0],
            "crop_pos_x": share[1],
            "crop_h": extent[0],
            "crop_w": extent[1],
        }
    return fn.crop_mirror_normalize(
        pixels, dtype=DTYPES[dtype], output_layout=layout, mean=list(mean), std=list(std), **options
    )


def transform_channels(pixels: Any, matrix: Any, rows: int, dtype: str) -> Any:
    """Multiply the channels of each pixel by a matrix of so many rows; truncate uint8."""
    shift, made = (-_ALMOST_HALF, types.UINT8) if dtype == "uint8" else (0.0, types.FLOAT)
    return fn.coord_transform(pixels, M=matrix, T=[shift] * rows, dtype=made)


def repeat_channel(pixels: Any) -> Any:
    """Make three equal channels of one."""
    return fn.color_space_conversion(pixels, image_type=types.GRAY, output_type=types.RGB)


def planes(pixels: Any) -> Any:
    """Transpose HWC to CHW."""
    return fn.transpose(pixels, perm=[2, 0, 1])


def split(node: Any, predicate: Any) -> Any:
    """Split a batch into the samples whose predicate is true, and the others. Copies nothing.

    These are the operators behind `if` in a pipeline of DALI with conditionals enabled.
    """
    return fn._conditional.split(node, predicate=predicate)  # type: ignore[attr-defined]


def merge(true: Any, false: Any, predicate: Any) -> Any:
    """Merge what `split` returned back into one batch, in the order of its samples."""
    return fn._conditional.merge(true, false, predicate=predicate)  # type: ignore[attr-defined]
