"""Kernels with OpenCV, tried before those of `kernels`. Imported only if OpenCV is installed.

OpenCV releases the GIL, and here runs on the calling thread alone.

- A function of one uint8 value becomes a lookup table of 256 entries, which the reference computes
  once. So to_dtype and normalize are one lookup into the batch, with torchvision's own results. The
  same lookup does the changes of levels before them, such as of brightness and contrast.
- `_warp_planes` warps a mask beside the colours, and weighs the pixels at the border of the image
  by the mask. torchvision does the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import opencv_colors, opencv_levels, ops
from gpupipe.engines.cpu.delivery import (
    CONVERTED,
    Conversion,
    end_with_delivery,
    find_conversion,
    find_planes,
)
from gpupipe.engines.cpu.kernels import is_antialiased_uint8, run_resize_uint8
from gpupipe.engines.cpu.opencv_lookup import IDENTITY, look_up
from gpupipe.engines.cpu.patterns import Match, Maybe
from gpupipe.engines.cpu.pixels import (
    MAX_OPENCV_CHANNELS,
    Array,
    Pixels,
    as_array,
    as_packed,
    scratch,
    with_channels,
)
from gpupipe.engines.cpu.program import Kernel, Rule, single

_FLAGS = {
    "nearest": cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP,
    "bilinear": cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
}
_FLIPS = {(1, 0): 1, (0, 1): 0, (1, 1): -1}
"""OpenCV's codes of flips, by flags for horizontal and vertical."""
_BORDERS = {
    "edge": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT_101,
    "symmetric": cv2.BORDER_REFLECT,
}
_EXACT_CHANNELS = (1, 3, 4)
"""With these numbers of channels OpenCV warps exactly; with 2 it rounds points to 1/32 pixel."""
_TO_RGBA = {1: cv2.COLOR_GRAY2RGBA, 3: cv2.COLOR_RGB2RGBA}
_FULL = 255


def _run_flip(op: ops.FlipOp, pixels: Pixels, row: int) -> Pixels:
    horizontal, vertical = ops.as_ints(op.flags, row)
    code = _FLIPS.get((horizontal, vertical))
    if code is None:
        return pixels
    array = as_packed(pixels)
    return with_channels(cv2.flip(array, code, dst=scratch.take(array.shape)))


def _run_transpose(op: ops.TransposeOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    height, width, channels = array.shape
    turned = scratch.take((width, height, channels))
    return with_channels(cv2.transpose(array, dst=turned))


def _run_crop(op: ops.CropOp, pixels: Pixels, row: int) -> Pixels:
    """Cut out a window, of which parts may be outside of the image."""
    top, left, height, width = op.windows[row]
    array, fill = as_array(pixels), ops.spread_fill(op.fill, op.spec.channels or 1)
    above, before = max(-top, 0), max(-left, 0)
    part = array[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if not part.size:  # all of the window is outside
        return np.full((height, width, array.shape[2]), fill).astype(array.dtype)
    below, after = height - above - len(part), width - before - part.shape[1]
    if not any((above, before, below, after)):
        return part
    assert fill is not None
    return _add_border(part, (above, before, below, after), cv2.BORDER_CONSTANT, fill.tolist())


def _run_pad(op: ops.PadOp, pixels: Pixels, row: int) -> Pixels:
    return _add_border(as_array(pixels), op.borders[row], _BORDERS[op.mode], ())


def _add_border(array: Array, borders: Sequence[int], kind: int, fill: Sequence[float]) -> Array:
    top, left, bottom, right = borders
    shape = len(array) + top + bottom, array.shape[1] + left + right, array.shape[2]
    out = scratch.take(shape) if array.dtype == np.uint8 else np.empty(shape, array.dtype)
    cv2.copyMakeBorder(
        np.ascontiguousarray(array) if array.strides[2] != array.itemsize else array,
        top, bottom, left, right, kind, dst=out, value=fill,
    )  # fmt: skip
    return out


def _has_borders(op: ops.Op) -> bool:
    return op.spec.dtype in ("uint8", "float32") and op.spec.channels in range(1, 5)


def _can_transpose(op: ops.Op) -> bool:
    # Of floats, pixels of 12 bytes are slower there than in NumPy.
    return op.spec.dtype == "uint8" and op.spec.channels in range(1, 5)


def _is_filled(op: ops.CropOp) -> bool:
    return op.fill is not None and _has_borders(op)


def _run_warp(op: ops.ResampleOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    fill = ops.spread_fill(op.fill, array.shape[2])
    if array.dtype == np.uint8 and _warps_bytes(op):
        planes = _warp_planes(op, row, array)
        colors = scratch.take((*planes.shape[1:], len(planes)))
        return with_channels(cv2.merge(list(planes), dst=colors))
    image = array.astype(np.float32) if array.dtype == np.float16 else array
    if op.interpolation == "nearest":
        return _warp(op, row, image, fill).astype(array.dtype)
    warped = _warp(op, row, image.astype(np.float32))
    if fill is not None:
        mask = _warp(op, row, np.ones((*array.shape[:2], 1), np.float32))
        warped = (warped - fill.astype(np.float32)) * mask + fill.astype(np.float32)
    return (np.rint(warped) if array.dtype == np.uint8 else warped).astype(array.dtype)


def _warp(
    op: ops.ResampleOp,
    row: int,
    image: Array,
    fill: NDArray[np.float64] | None = None,
    out: Array | None = None,
) -> Array:
    """Warp `image` with the matrix and the output size of the sample in `row`."""
    (height, width), matrix = ops.as_ints(op.sizes, row), op.matrices[row]
    warp = cv2.warpAffine if len(matrix) == 2 else cv2.warpPerspective
    border: tuple[float, ...] = () if fill is None else tuple(fill.tolist())
    how = _FLAGS[op.interpolation], cv2.BORDER_CONSTANT, border
    return with_channels(warp(image, matrix, (width, height), out, *how))


def _can_warp(op: ops.ResampleOp) -> bool:
    return op.spec.channels in _EXACT_CHANNELS


def _warps_bytes(op: ops.ResampleOp) -> bool:
    """Return whether `_warp_planes` can do a warp."""
    is_bilinear_uint8 = op.spec.dtype == "uint8" and op.interpolation == "bilinear"
    return is_bilinear_uint8 and op.spec.channels in _TO_RGBA


def _warp_planes(op: ops.ResampleOp, row: int, array: Array) -> NDArray[np.uint8]:
    """Warp 1 or 3 channels together with a mask, and weigh the pixels at the border by the mask.

    The mask is the fourth channel, since OpenCV warps four channels faster than three. Without a
    fill, no pixels are weighed.

    Returns:
        The channels, (C, H, W), in scratch memory.
    """
    (height, width, channels), size = array.shape, ops.as_ints(op.sizes, row)
    fill = ops.spread_fill(op.fill, channels)
    colors = scratch.take((height, width, 4))
    cv2.cvtColor(array, _TO_RGBA[channels], dst=colors)
    mapped = _warp(op, row, colors, out=scratch.take((*size, 4)))
    planes = scratch.take((4, *size))
    cv2.split(mapped, list(planes))
    warped, mask = planes[:channels], planes[-1].reshape(-1)
    if fill is None or cv2.minMaxLoc(planes[-1])[0] == _FULL:  # no pixel at the border
        return warped
    flat, values = warped.reshape(channels, -1), fill[:, None]
    border = np.flatnonzero(mask - np.uint8(1) < _FULL - 1)
    weights = mask[border] * np.float32(1 / _FULL)
    flat[:, border] = np.rint((flat[:, border] - values) * weights + values)
    if fill.any():
        flat[:, np.flatnonzero(mask == 0)] = values
    return warped


def _deliver(conversion: Conversion, changes: Sequence[ops.Op], pixels: Pixels, row: int) -> None:
    """Write a sample to its slot, through a table for to_dtype and normalize.

    `changes` are changes of levels before the conversion, which the table does too.
    """
    output, image = conversion.output, as_array(pixels)
    height, width, channels = image.shape
    table = conversion.table(channels)
    if not output.begin(row, (channels, height, width), table.dtype):
        return
    if output.format.is_interleaved:
        slot = output.slot(row).permute(1, 2, 0).numpy()
        _write_interleaved(image, _compose(table, changes, image, row), slot)
        return
    slot = output.slot_array(row)
    is_unconverted = not conversion.conversions and slot.dtype == np.uint8
    if changes and is_unconverted and channels == opencv_colors.RGB and image.flags.c_contiguous:
        changed = opencv_levels.change_packed(changes, image, row)
        if changed is not None:
            cv2.split(changed, list(slot))
            return
    planes = opencv_colors.split(image, slot if slot.dtype == np.uint8 else None)
    is_copy = not np.may_share_memory(planes, image)
    levels = _compose(table, changes, planes.transpose(1, 2, 0), row, is_copy)
    _write_planes(planes, levels, slot)


def _compose(
    table: torch.Tensor, changes: Sequence[ops.Op], image: Array, row: int, may_change: bool = False
) -> Array:
    """Return the delivered value of each level of each channel, (C, 256).

    See `find_levels` for `may_change`.
    """
    values: Array = table[:, 0].numpy()
    levels = opencv_levels.find_levels(changes, image, row, may_change)
    return values if levels is None else values[np.arange(len(values))[:, None], levels.T]


def _write_planes(planes: Array, values: Array, slot: Array) -> None:
    """Write the planes of an image, (C, H, W), to its slot, through a table (C, 256).

    The planes may be the slot.
    """
    if _is_identity(values):
        if planes is not slot:
            np.copyto(slot, planes)
        return
    values, slot = _as_bits(values), _as_bits(slot)
    if (values == values[:1]).all():  # one call: re-taking the GIL after each takes time
        look_up(planes, values[0], slot)
        return
    for plane, entries, part in zip(planes, values, slot, strict=True):
        look_up(plane, entries, part)


def _write_interleaved(image: Array, values: Array, slot: Array) -> None:
    """Write an image, (H, W, C), to its slot of those strides, through a table (C, 256)."""
    if _is_identity(values):
        np.copyto(slot, image if image.strides[2] == 1 else as_packed(image))
        return
    array, values, slot = as_packed(image), _as_bits(values), _as_bits(slot)
    if (values == values[:1]).all():
        look_up(array, values[0], slot)
    elif len(values) > MAX_OPENCV_CHANNELS:
        slot[...] = values.T[array, np.arange(len(values))]
    else:
        cv2.LUT(array, np.ascontiguousarray(values.T)[None], dst=slot)


def _is_identity(values: Array) -> bool:
    return values.dtype == np.uint8 and bool((values == IDENTITY).all())


def _as_bits(array: Array) -> Array:
    """Return a float16 array as an int16 view, since OpenCV's lookup copies bits."""
    return array.view(np.int16) if array.dtype == np.float16 else array


def _bind_delivery(match: Match) -> Kernel | None:
    conversion = find_conversion(match)
    if conversion is None:
        return None
    changes = [op for op in match.ops if type(op) in opencv_levels.LEVELS.kinds]
    kernel = end_with_delivery("cv2.LUT", match, partial(_deliver, conversion, changes))
    return replace(kernel, needs_torchvision=any(map(opencv_levels.needs_torchvision, changes)))


def _bind_warp(match: Match) -> Kernel | None:
    """Return the kernel that warps and delivers plane by plane; None if it cannot do both."""
    warp, conversion = match[ops.WarpOp], find_conversion(match)
    if conversion is None or conversion.output.format.is_interleaved or not _warps_bytes(warp):
        return None

    def run(pixels: Pixels, row: int) -> None:
        planes, output = _warp_planes(warp, row, as_packed(pixels)), conversion.output
        table = conversion.table(len(planes))
        if output.begin(row, planes.shape, table.dtype):
            _write_planes(planes, table[:, 0].numpy(), output.slot_array(row))

    return end_with_delivery("cv2.warpAffine", match, run)


def _bind_resize(match: Match) -> Kernel | None:
    """Return the kernel that resizes, crops and delivers images of uint8; None if it cannot."""
    # A resize empties the CPU's caches, so fewer calls after it save 10 of 190 microseconds.
    resize, crop, output = match[ops.ResizeOp], match.get(ops.CropOp), find_planes(match)
    if output is None or not is_antialiased_uint8(resize) or not _has_borders(resize):
        return None
    if crop and not ops.are_inside(crop.windows, resize.sizes):
        return None

    def run(pixels: Pixels, row: int) -> None:
        image = as_array(run_resize_uint8(resize, pixels, row))
        if crop:
            top, left, height, width = ops.as_ints(crop.windows, row)
            image = image[top : top + height, left : left + width]
        height, width, channels = image.shape
        if output.begin(row, (channels, height, width), torch.uint8):
            cv2.split(as_packed(image), list(output.slot_array(row)))

    return end_with_delivery("torch.interpolate", match, run)


def create_rules() -> list[Rule]:
    """Return the rules of the kernels that use OpenCV, and set OpenCV to use one thread."""
    cv2.setNumThreads(0)  # the samples of a batch already use all cores
    return [
        Rule((ops.WarpOp, *CONVERTED), _bind_warp),
        Rule((ops.ResizeOp, Maybe(ops.CropOp), *CONVERTED), _bind_resize),
        Rule((opencv_levels.LEVELS, *CONVERTED), _bind_delivery),
        Rule(CONVERTED, _bind_delivery),
        single(ops.FlipOp, "cv2.flip", _run_flip, lambda op: op.spec.dtype == "uint8"),
        single(ops.TransposeOp, "cv2.transpose", _run_transpose, _can_transpose),
        single(ops.CropOp, "cv2.copyMakeBorder", _run_crop, _is_filled),
        single(ops.PadOp, "cv2.copyMakeBorder", _run_pad, _has_borders),
        *opencv_levels.RULES,
        *opencv_colors.RULES,
        single(ops.WarpOp, "cv2.warpAffine", _run_warp, _can_warp),
        single(ops.PerspectiveOp, "cv2.warpPerspective", _run_warp, _can_warp),
    ]
