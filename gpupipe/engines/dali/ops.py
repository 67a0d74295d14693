"""The DALI operators that gpupipe uses on pixels, with the arguments that make them agree with
torchvision.

Nodes of images have layout HWC. What an operator is told of a sample (windows, sizes, matrices,
flags) is a DataNode, or plain numbers where it is the same for all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from nvidia.dali import fn, types

from gpupipe.engines.dali.pending_ops import Decoding

Layout = Literal["CHW", "HWC"]
Fill = tuple[float, ...]

_MODES = {"rgb": types.RGB, "gray": types.GRAY}
_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
}
_BORDERS = {"edge": "replicate", "reflect": "reflect_101", "symmetric": "reflect"}
DTYPES = {"uint8": types.UINT8, "float16": types.FLOAT16, "float32": types.FLOAT}


def read(paths: Any) -> Any:
    """The bytes of files, copied: mapping them into memory takes 5 % more of an LFW epoch, and DALI
    keeps a record of every file that was ever mapped.
    """
    return fn.io.file.read(paths, dont_use_mmap=True)


def decode(data: Any, device: str, how: Decoding, options: dict[str, Any]) -> Any:
    """The pixels."""
    return fn.decoders.image(data, jpeg_fancy_upsampling=True, **_decoding(device, how), **options)


def decode_window(
    data: Any, anchor: Any, shape: Any, device: str, how: Decoding, options: dict[str, Any]
) -> Any:
    """The pixels of a window alone."""
    place = {"start": anchor, "shape": shape, "axes": [0, 1]}
    return fn.decoders.image_slice(
        data, jpeg_fancy_upsampling=True, **place, **_decoding(device, how), **options
    )


def _decoding(device: str, how: Decoding) -> dict[str, Any]:
    dtype = types.UINT16 if how.dtype == "uint16" else types.UINT8
    options = {"output_type": _MODES[how.mode], "adjust_orientation": how.exif, "dtype": dtype}
    return {"device": "mixed" if device == "gpu" else "cpu", **options}


def cut(
    pixels: Any, anchor: Any, shape: Any, fill: Fill | None, axes: Sequence[int] = (0, 1)
) -> Any:
    """A window along `axes`; outside the image is `fill`, or an error where that is None."""
    policy = (
        {"out_of_bounds_policy": "error"}
        if fill is None
        else {"out_of_bounds_policy": "pad", "fill_values": list(fill)}
    )
    return fn.slice(pixels, start=anchor, shape=shape, axes=list(axes), **policy)


def resize(pixels: Any, shape: Any, interpolation: str, antialias: bool) -> Any:
    """Resampled to `shape`."""
    return fn.resize(pixels, size=shape, **_resampling(interpolation, antialias))


def resize_region(
    pixels: Any, shape: Any, start: Any, end: Any, interpolation: str, antialias: bool
) -> Any:
    """The region from `start` to `end`, in pixels, resampled to `shape`; the filter looks beyond
    its edges.
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
    """Mirrored along each axis whose flag is 1."""
    return fn.flip(pixels, horizontal=horizontal, vertical=vertical)


def warp_affine(pixels: Any, matrix: Any, size: Any, interpolation: str, fill: float) -> Any:
    """`matrix` (2, 3) from output to source; `size` of what comes out, or None for the image's
    own.
    """
    return fn.warp_affine(
        pixels,
        matrix=matrix,
        interp_type=_INTERPOLATION[interpolation],
        fill_value=fill,
        **_sized(size),
    )


def warp_perspective(pixels: Any, matrix: Any, size: Any, interpolation: str, fill: Fill) -> Any:
    """The same with a matrix (3, 3), and one fill value a channel.

    On a CPU it is the faster of the two.
    """
    kind = {"interp_type": _INTERPOLATION[interpolation], "fill_value": list(fill)}
    return fn.experimental.warp_perspective(pixels, matrix=matrix, **kind, **_sized(size))


def warp_border(pixels: Any, matrix: Any, size: Any, mode: str) -> Any:
    """Moved by whole pixels; what is outside the image is made of it: mode "edge", "reflect" or
    "symmetric".
    """
    return fn.experimental.warp_perspective(
        pixels,
        matrix=matrix,
        interp_type=types.INTERP_NN,
        border_mode=_BORDERS[mode],
        **_sized(size),
    )


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
    """(x - mean) / std as `dtype` in `layout`, after cutting a window and mirroring left and right.

    The window: `share` = (top, left) of the room that it leaves, `extent` = (height, width); None
    for the whole image.
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


def planes(pixels: Any) -> Any:
    """HWC to CHW."""
    return fn.transpose(pixels, perm=[2, 0, 1])
