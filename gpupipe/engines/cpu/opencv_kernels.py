"""Kernels with OpenCV, in front of those of `kernels`. Imported only if OpenCV is installed.

OpenCV releases the GIL, and here runs on the calling thread alone.

- Functions of single uint8 values are tables of 256 entries, which the reference computes once. So
  a whole chain of to_dtype and normalize is one lookup, with torchvision's own numbers, straight
  into the batch.
- A warp moves a mask beside the colours. torchvision weighs the pixels at the border of the image
  by the mask, and so does `_warp_planes`.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import kernels, opencv_colors
from gpupipe.engines.cpu.level_tables import can_look_up, find_table
from gpupipe.engines.cpu.pixels import as_packed, with_channels
from gpupipe.engines.cpu.program import Call, Calls, Kernel, Table
from gpupipe.engines.cpu.scratch import scratch

_FLAGS = {
    "nearest": cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP,
    "bilinear": cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
}
_FLIPS = {(1, 0): 1, (0, 1): 0, (1, 1): -1}
"""OpenCV's codes of flips, by flags for horizontal and vertical."""
_EXACT_CHANNELS = (1, 3, 4)
"""The channels that OpenCV warps with exact coordinates; with 2 they are whole 32nds of a pixel."""
_TO_RGBA = {1: cv2.COLOR_GRAY2RGBA, 3: cv2.COLOR_RGB2RGBA}
_FULL = 255


def _run_flip(pixels: Any, calls: Calls, row: int) -> Any:
    code = _FLIPS.get(tuple(calls[0].rows[row]))
    if code is None:
        return pixels
    array = as_packed(pixels)
    return with_channels(cv2.flip(array, code, dst=scratch.take(array.shape)))


def _run_warp(pixels: Any, calls: Calls, row: int) -> Any:
    array = as_packed(pixels)
    map, fill = _read_map(calls[0], row, array.shape[2])
    if array.dtype == np.uint8 and _warps_bytes(calls):
        planes = _warp_planes(array, map, fill)
        colors = scratch.take((*planes.shape[1:], len(planes)))
        return with_channels(cv2.merge(list(planes), dst=colors))
    image = array.astype(np.float32) if array.dtype == np.float16 else array
    if calls[0].options[0] == "nearest":
        return _warp(image, map, fill).astype(array.dtype)
    made = _warp(image.astype(np.float32), map)
    if fill is not None:
        mask = _warp(np.ones((*array.shape[:2], 1), np.float32), map)
        made = (made - fill.astype(np.float32)) * mask + fill.astype(np.float32)
    return (np.rint(made) if array.dtype == np.uint8 else made).astype(array.dtype)


def _run_warp_and_deliver(pixels: Any, calls: Calls, row: int) -> Any:
    array = as_packed(pixels)
    map, fill = _read_map(calls[0], row, array.shape[2])
    _deliver_planes(_warp_planes(array, map, fill), calls[1:], row)


def _read_map(call: Call, row: int, channels: int) -> tuple[Any, NDArray[np.float64] | None]:
    """Return the matrix, the size and the flags of a sample's warp, and the fill per channel."""
    matrix, (height, width) = call.rows[row]
    interpolation, fill = call.options
    values = None if fill is None else np.full(channels, fill, np.float64)
    return (matrix, (width, height), _FLAGS[interpolation]), values


def _can_warp(calls: Calls) -> bool:
    return calls[0].spec.channels in _EXACT_CHANNELS


def _warps_bytes(calls: Calls) -> bool:
    """Whether `_warp_planes` can do a warp."""
    spec, (interpolation, _) = calls[0].spec, calls[0].options
    return spec.dtype == "uint8" and interpolation == "bilinear" and spec.channels in _TO_RGBA


def _can_warp_and_deliver(calls: Calls) -> bool:
    is_contiguous = not calls[-1].options.form.channels_last
    return is_contiguous and _warps_bytes(calls) and can_look_up(calls[1:])


def _warp_planes(
    array: NDArray[np.uint8], map: Any, fill: NDArray[np.float64] | None
) -> NDArray[np.uint8]:
    """Warp 1 or 3 channels beside a mask, and weigh the pixels at the border by it.

    OpenCV warps four channels faster than three. Without a fill, the pixels at the border stay.

    Returns:
        The channels, (C, H, W), in scratch memory.
    """
    height, width, channels = array.shape
    colors = scratch.take((height, width, 4))
    cv2.cvtColor(array, _TO_RGBA[channels], dst=colors)
    size = map[1][::-1]
    made = _warp(colors, map, out=scratch.take((*size, 4)))
    planes = scratch.take((4, *size))
    cv2.split(made, list(planes))
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


def _warp(image: Any, map: Any, fill: Any = None, out: Any = None) -> NDArray[Any]:
    matrix, size, flags = map
    warp = cv2.warpAffine if len(matrix) == 2 else cv2.warpPerspective
    border = () if fill is None else tuple(fill.tolist())
    options = {"flags": flags, "borderMode": cv2.BORDER_CONSTANT, "borderValue": border}
    return with_channels(warp(image, matrix, size, dst=out, **options))


def _run_deliver_bytes(pixels: Any, calls: Calls, row: int) -> Any:
    """Write uint8 pixels to their place, through a table for to_dtype and normalize."""
    array, destination = as_packed(pixels), calls[-1].options
    height, width, channels = array.shape
    if not destination.form.channels_last:
        planes = array.transpose(2, 0, 1)
        if channels > 1:
            planes = scratch.take((channels, height, width))
            cv2.split(array, list(planes))
        _deliver_planes(planes, calls, row)
        return
    table = find_table(calls, channels)
    place = destination.place(row, (channels, height, width), table.dtype)
    if place is not None:
        values = table.permute(1, 2, 0).contiguous()
        cv2.LUT(array, _as_opencv(values), dst=_as_opencv(place.permute(1, 2, 0)))


def _deliver_planes(planes: NDArray[np.uint8], calls: Calls, row: int) -> None:
    """Write the planes of an image, (C, H, W), to their place, through a table."""
    table = find_table(calls, len(planes))
    place = calls[-1].options.place_array(row, planes.shape, table.dtype)
    if place is None:
        return
    values, own = _as_opencv(table), _as_bits(place)
    if (values == values[:1]).all():  # one call: each hands the interpreter over to other threads
        width = planes.shape[2]
        cv2.LUT(planes.reshape(-1, width), values[0], dst=own.reshape(-1, width))
        return
    for plane, levels, part in zip(planes, values, own, strict=True):
        cv2.LUT(plane, levels, dst=part)


def _as_opencv(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a NumPy view, with float16 as int16: OpenCV's tables copy bits."""
    return _as_bits(tensor.numpy())


def _as_bits(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(np.int16) if array.dtype == np.float16 else array


def _add(table: Table, group: tuple[str, ...], kernel: Kernel) -> None:
    table[group] = [kernel, *table.get(group, [])]


def create_table() -> Table:
    """Return the table of `kernels` with those of OpenCV in front."""
    cv2.setNumThreads(0)  # the samples of a batch already use all cores
    table = dict(kernels.TABLE)
    _add(table, ("flip",), Kernel(_run_flip, "cv2.flip", _is_uint8))
    for group, first in opencv_colors.TABLE.items():
        table[group] = [*first, *table[group]]
    _add(table, ("warp",), Kernel(_run_warp, "cv2.warpAffine", _can_warp))
    _add(table, ("perspective",), Kernel(_run_warp, "cv2.warpPerspective", _can_warp))
    look_up = Kernel(_run_deliver_bytes, "cv2.LUT", can_look_up)
    warp_and_deliver = Kernel(_run_warp_and_deliver, "cv2.warpAffine", _can_warp_and_deliver)
    for numbers in ((), ("to_dtype",), ("to_dtype", "normalize")):
        _add(table, (*numbers, "deliver"), look_up)
        _add(table, ("warp", *numbers, "deliver"), warp_and_deliver)
    return table


def _is_uint8(calls: Calls) -> bool:
    return calls[0].spec.dtype == "uint8"
