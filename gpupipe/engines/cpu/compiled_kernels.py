"""Kernels of the extension `gpupipe._kernels`, in front of all others.

They take RGB images of uint8. Each ends with the conversion of the levels, straight into the
sample's place in the batch, and runs without the GIL. One that delivers can also be prepared, and
run later with those of other samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.delivery import Destination, view_as_array
from gpupipe.engines.cpu.level_tables import (
    NUMPY_DTYPES,
    can_look_up,
    list_numbers,
)
from gpupipe.engines.cpu.pixels import as_array, as_packed
from gpupipe.engines.cpu.program import Call, Calls, Kernel, Table
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.engines.value_tables import make_numbers, make_table
from gpupipe.runtime.compiled_extension import find_extension

_DTYPES = (*NUMPY_DTYPES, "bfloat16")
_RGB = 3
_TORCH_HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
_extension = find_extension()


def _run_now(task: Any) -> None:
    if task is not None:
        _extension.run((task,))


def _run_warp(pixels: Any, calls: Calls, row: int) -> Any:
    warped = scratch.take((*calls[0].rows[row][1], _RGB))
    target = warped.transpose(2, 0, 1)
    _run_now(_prepare_warp_to(target, (None, None), _as_rows(pixels), calls, row))
    return warped


def _run_warp_and_deliver(pixels: Any, calls: Calls, row: int) -> Any:
    _run_now(_prepare_warp(_as_rows(pixels), calls, row))


def _prepare_warp(pixels: Any, calls: Calls, row: int, before: Any = None) -> Any:
    place, conversion = _find_place(calls[1:], row, tuple(calls[0].rows[row][1]))
    if place is None:
        return None
    return _prepare_warp_to(place, conversion, pixels, calls, row, before)


def _prepare_warp_to(
    target: NDArray[Any], conversion: Any, pixels: Any, calls: Calls, row: int, before: Any = None
) -> Any:
    matrix, _ = calls[0].rows[row]
    fill = _find_fill(calls[0].options[1])
    return _extension.prepare_warp(pixels, (matrix, fill), (target, *conversion), before)


@lru_cache(maxsize=16)
def _find_fill(fill: tuple[float, ...] | None) -> NDArray[np.float64] | None:
    return None if fill is None else np.full(_RGB, fill, np.float64)


def _run_convert(pixels: Any, calls: Calls, row: int) -> Any:
    _run_now(_prepare_convert(_as_rows(pixels), calls, row))


def _prepare_convert(pixels: Any, calls: Calls, row: int, before: Any = None) -> Any:
    """Prepare a conversion, and perhaps a flip before it."""
    flips = tuple(calls[0].rows[row]) if calls[0].primitive == "flip" else (0, 0)
    place, conversion = _find_place(_without_geometry(calls), row, pixels.shape[:2])
    if place is None:
        return None
    return _extension.prepare_convert(pixels, flips, (place, *conversion), before)


def _as_rows(pixels: Any) -> NDArray[np.uint8]:
    """Return pixels as an array (H, W, C) whose rows have no gaps."""
    array = as_array(pixels)
    return array if array.strides[1:] == (_RGB, 1) else as_packed(array)


def _find_place(
    calls: Calls, row: int, size: tuple[int, int]
) -> tuple[NDArray[Any] | None, tuple[Any, Any]]:
    """Return the sample's place in the batch, (C, H, W), if it has one, and the conversion."""
    destination: Destination = calls[-1].options
    if destination.conversion is None:
        destination.conversion = _find_conversion(list_numbers(calls), destination.form.dtype)
    dtype, conversion = destination.conversion
    return destination.place_array(row, (_RGB, *size), dtype), conversion


@lru_cache(maxsize=64)
def _find_conversion(numbers: Any, dtype: str | None) -> tuple[torch.dtype, tuple[Any, Any]]:
    """Return the dtype to deliver, the table and the numbers; None for what changes nothing."""
    table = make_table(numbers, dtype, _RGB)
    if table.dtype == torch.uint8 and not numbers:
        return table.dtype, (None, None)
    return table.dtype, (view_as_array(table[:, 0]), make_numbers(numbers, dtype, _RGB))


def _run_resize(pixels: Any, calls: Calls, row: int) -> Any:
    """Resize, and perhaps crop and flip, to uint8."""
    resize, window, flips = _find_resize(calls, row)
    resized = scratch.take((*window[2:], _RGB))
    target = resized.transpose(2, 0, 1)
    if _is_window_inside(resize.rows[row], window):
        rows = _as_rows(pixels)
        _run_now(_prepare_resize_to(target, (None, None), rows, resize, row, window, flips))
    else:
        cut = _cut_resized(pixels, calls, row)
        _run_now(_extension.prepare_convert(cut, tuple(flips), (target, None, None)))
    return resized


def _run_resize_and_deliver(pixels: Any, calls: Calls, row: int) -> Any:
    """Resize, and perhaps crop and flip, to the sample's place in the batch."""
    resize, window, flips = _find_resize(calls, row)
    if _is_window_inside(resize.rows[row], window):
        _run_now(_prepare_resize(_as_rows(pixels), calls, row))
        return
    place, conversion = _find_place(_without_geometry(calls), row, (window[2], window[3]))
    if place is not None:
        cut = _cut_resized(pixels, calls, row)
        _run_now(_extension.prepare_convert(cut, tuple(flips), (place, *conversion)))


def _prepare_resize(pixels: Any, calls: Calls, row: int, before: Any = None) -> Any:
    """Prepare a resize to the sample's place, if the window of a crop is inside the result."""
    resize, window, flips = _find_resize(calls, row)
    if not _is_window_inside(resize.rows[row], window):
        return None
    place, conversion = _find_place(_without_geometry(calls), row, (window[2], window[3]))
    if place is None:
        return None
    return _prepare_resize_to(place, conversion, pixels, resize, row, window, flips, before)


def _find_resize(calls: Calls, row: int) -> tuple[Call, list[int], list[int]]:
    """Return the call of a resize, the window of its result, and the flags of the flips."""
    window, flips = [0, 0, *calls[0].rows[row]], [0, 0]
    for call in calls[1:]:
        if call.primitive == "crop":
            window = call.rows[row]
        elif call.primitive == "flip":
            flips = call.rows[row]
    return calls[0], window, flips


def _is_window_inside(size: Sequence[int], window: Sequence[int]) -> bool:
    top, left, height, width = window
    return min(top, left) >= 0 and top + height <= size[0] and left + width <= size[1]


def _prepare_resize_to(
    target: NDArray[Any],
    conversion: Any,
    pixels: Any,
    resize: Call,
    row: int,
    window: Sequence[int],
    flips: Sequence[int],
    before: Any = None,
) -> Any:
    interpolation, antialias = resize.options
    height, width = resize.rows[row]
    options = (height, width, *window[:2], interpolation == "bicubic", antialias, *flips)
    return _extension.prepare_resize(pixels, options, (target, *conversion), before)


def _cut_resized(pixels: Any, calls: Calls, row: int) -> NDArray[np.uint8]:
    """Resize, and crop a window that is not inside the result."""
    resized = _run_resize(pixels, calls[:1], row)
    return as_packed(kernels.crop(resized, calls[1].rows[row], calls[1].options))


def _without_geometry(calls: Calls) -> Calls:
    return [call for call in calls if call.primitive not in ("resize", "crop", "flip")]


def _is_rgb(calls: Calls) -> bool:
    return calls[0].spec.dtype == "uint8" and calls[0].spec.channels == _RGB


def _is_smooth(calls: Calls) -> bool:
    """Whether the first call, a warp, is one that the extension does."""
    return _is_rgb(calls) and calls[0].options[0] == "bilinear"


def _can_resize(calls: Calls) -> bool:
    """Whether the first call is a resize that torchvision does in uint8, of RGB images.

    Without antialiasing, torchvision's bilinear resize is in float32 on processors without AVX2.
    """
    interpolation, antialias = calls[0].options
    if interpolation == "bilinear":
        return _is_rgb(calls) and (antialias or _TORCH_HAS_AVX2)
    return _is_rgb(calls) and interpolation == "bicubic"


def _can_resize_and_deliver(calls: Calls) -> bool:
    return _can_resize(calls) and can_look_up(_without_geometry(calls), _DTYPES)


def _can_convert(calls: Calls) -> bool:
    return _is_rgb(calls) and can_look_up(_without_geometry(calls), _DTYPES)


def _can_warp_and_deliver(calls: Calls) -> bool:
    return _is_smooth(calls) and can_look_up(calls[1:], _DTYPES)


def add_compiled(table: Table) -> Table:
    """Return a table with the kernels of the extension in front, if it is built and is not off."""
    if _extension is None:
        return table
    convert = Kernel(_run_convert, "kernels.convert", _can_convert, _prepare_convert)
    warp = Kernel(_run_warp_and_deliver, "kernels.warp", _can_warp_and_deliver, _prepare_warp)
    first: Table = {("warp",): [Kernel(_run_warp, "kernels.warp", _is_smooth)]}
    resizes = [("resize", *geometry) for geometry in ((), ("crop",), ("flip",), ("crop", "flip"))]
    for group in resizes:
        first[group] = [Kernel(_run_resize, "kernels.resize", _can_resize)]
    resize = Kernel(
        _run_resize_and_deliver, "kernels.resize", _can_resize_and_deliver, _prepare_resize
    )
    for numbers in ((), ("to_dtype",), ("to_dtype", "normalize")):
        for group in resizes:
            first[(*group, *numbers, "deliver")] = [resize]
        first[(*numbers, "deliver")] = [convert]
        first[("flip", *numbers, "deliver")] = [convert]
        first[("warp", *numbers, "deliver")] = [warp]
    return {**table, **{group: [*k, *table.get(group, [])] for group, k in first.items()}}
