"""Kernels of the extension `gpupipe._kernels`, in front of all others.

They take RGB images of uint8: a geometry (a warp, a resize with a crop and a flip, or a flip), and
then the conversion of the levels, straight into the slot of the sample. They run without the GIL.
One that delivers can also be prepared, and run later with those of other samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.delivery import (
    CONVERTED,
    NUMPY_DTYPES,
    Conversion,
    end_with_delivery,
    find_conversion,
)
from gpupipe.engines.cpu.ops import CropOp, DeliverOp, FlipOp, Op, ResizeOp, WarpOp, Window
from gpupipe.engines.cpu.output_buffer import view_as_array
from gpupipe.engines.cpu.pixels import Array, Pixels, as_array, as_packed, scratch
from gpupipe.engines.cpu.program import Kernel, Match, Maybe, Pattern, Rule, Task
from gpupipe.engines.value_tables import make_numbers, make_table
from gpupipe.runtime.compiled_extension import find_extension

_DTYPES = (*NUMPY_DTYPES, "bfloat16")
_RGB = 3
_TORCH_HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
_extension = find_extension()


class _Target(NamedTuple):
    """Where an image goes, (3, H, W), and what becomes of its levels; None: they stay."""

    pixels: Array
    table: Array | None = None
    factors: NDArray[np.float32] | None = None


class _Geometry(ABC):
    """What a kernel does before the conversion of the levels."""

    @abstractmethod
    def find_size(self, pixels: Array, row: int) -> tuple[int, int]:
        """Return [height, width] of the result for a sample."""

    @abstractmethod
    def prepare(
        self, pixels: Array, row: int, target: _Target, before: Task | None = None
    ) -> Task | None:
        """Return the task that writes a sample to a target; None if there is none.

        Args:
            pixels: The image, whose rows have no gaps.
            row: The row of the sample.
            target: Where it goes.
            before: Makes the pixels before.
        """

    def run(self, pixels: Array, row: int, target: _Target) -> None:
        """Write a sample to a target."""
        _extension.run((self.prepare(pixels, row, target),))


@dataclass(frozen=True)
class _Warp(_Geometry):
    op: WarpOp

    def find_size(self, pixels: Array, row: int) -> tuple[int, int]:
        height, width = self.op.sizes[row]
        return height, width

    def prepare(
        self, pixels: Array, row: int, target: _Target, before: Task | None = None
    ) -> Task | None:
        options = self.op.matrices[row], _find_fill(self.op.fill)
        task: Task = _extension.prepare_warp(pixels, options, target, before)
        return task


@lru_cache(maxsize=16)
def _find_fill(fill: tuple[float, ...] | None) -> NDArray[np.float64] | None:
    return None if fill is None else np.full(_RGB, fill, np.float64)


@dataclass(frozen=True)
class _Flip(_Geometry):
    op: FlipOp | None

    def find_size(self, pixels: Array, row: int) -> tuple[int, int]:
        return pixels.shape[0], pixels.shape[1]

    def prepare(
        self, pixels: Array, row: int, target: _Target, before: Task | None = None
    ) -> Task | None:
        flips = _find_flips(self.op, row)
        task: Task = _extension.prepare_convert(pixels, flips, target, before)
        return task


def _find_flips(op: FlipOp | None, row: int) -> tuple[int, int]:
    horizontal, vertical = (0, 0) if op is None else op.flags[row]
    return horizontal, vertical


@dataclass(frozen=True)
class _Resize(_Geometry):
    op: ResizeOp
    crop: CropOp | None = None
    flip: FlipOp | None = None

    def find_size(self, pixels: Array, row: int) -> tuple[int, int]:
        _, _, height, width = self._find_window(row)
        return height, width

    def prepare(
        self, pixels: Array, row: int, target: _Target, before: Task | None = None
    ) -> Task | None:
        size = self.op.sizes[row]
        top, left, height, width = self._find_window(row)
        if min(top, left) < 0 or top + height > size[0] or left + width > size[1]:
            return None
        how = self.op.interpolation == "bicubic", self.op.antialias, *_find_flips(self.flip, row)
        task: Task = _extension.prepare_resize(pixels, (*size, top, left, *how), target, before)
        return task

    def run(self, pixels: Array, row: int, target: _Target) -> None:
        task = self.prepare(pixels, row, target)
        if task is None:  # the window is not inside the resized image
            assert self.crop is not None
            resized = _run_to_levels(_Resize(self.op), pixels, row)
            cut = as_packed(kernels.crop(resized, self.crop.windows[row], self.crop.fill))
            task = _Flip(self.flip).prepare(cut, row, target)
        _extension.run((task,))

    def _find_window(self, row: int) -> Window:
        return (0, 0, *self.op.sizes[row]) if self.crop is None else self.crop.windows[row]


def _as_rows(pixels: Pixels) -> Array:
    """Return pixels as an array (H, W, C) whose rows have no gaps."""
    array = as_array(pixels)
    return array if array.strides[1:] == (_RGB, 1) else as_packed(array)


def _run_to_levels(geometry: _Geometry, pixels: Pixels, row: int) -> Pixels:
    """Return an image of uint8, (H, W, C), in scratch memory."""
    rows = _as_rows(pixels)
    levels = scratch.take((*geometry.find_size(rows, row), _RGB))
    geometry.run(rows, row, _Target(levels.transpose(2, 0, 1)))
    return levels


@dataclass(frozen=True)
class _Delivery:
    """Writes samples to their slots.

    Attributes:
        geometry: What is done before the conversion.
        conversion: What becomes of the levels.
        deliver: Where the samples go.
    """

    geometry: _Geometry
    conversion: Conversion
    deliver: DeliverOp

    @cached_property
    def _tables(self) -> tuple[torch.dtype, Array | None, NDArray[np.float32] | None]:
        """The dtype to deliver, the table and the numbers; None for what changes nothing."""
        numbers, dtype = self.conversion.numbers, self.conversion.dtype
        table = make_table(numbers, dtype, _RGB)
        if table.dtype == torch.uint8 and not numbers:
            return table.dtype, None, None
        return table.dtype, view_as_array(table[:, 0]), make_numbers(numbers, dtype, _RGB)

    def prepare(self, pixels: Array, row: int, before: Task | None) -> Task | None:
        target = self._find_target(pixels, row)
        return None if target is None else self.geometry.prepare(pixels, row, target, before)

    def run(self, pixels: Pixels, row: int) -> None:
        rows = _as_rows(pixels)
        target = self._find_target(rows, row)
        if target is not None:
            self.geometry.run(rows, row, target)

    def _find_target(self, pixels: Array, row: int) -> _Target | None:
        dtype, table, numbers = self._tables
        output, size = self.deliver.output, self.geometry.find_size(pixels, row)
        if not output.begin(row, (_RGB, *size), dtype):
            return None
        return _Target(output.slot_array(row), table, numbers)


def _find_warp(match: Match) -> _Geometry | None:
    warp = match[WarpOp]
    return _Warp(warp) if _is_rgb(warp) and warp.interpolation == "bilinear" else None


def _find_flip(match: Match) -> _Geometry | None:
    return _Flip(match.get(FlipOp)) if _is_rgb(match.ops[0]) else None


def _find_resize(match: Match) -> _Geometry | None:
    """Return the resize if torchvision does it in uint8.

    Without antialiasing, torchvision's bilinear resize is in float32 on processors without AVX2.
    """
    resize = match[ResizeOp]
    can_resize = resize.interpolation == "bicubic" or (
        resize.interpolation == "bilinear" and (resize.antialias or _TORCH_HAS_AVX2)
    )
    if not can_resize or not _is_rgb(resize):
        return None
    return _Resize(resize, match.get(CropOp), match.get(FlipOp))


def _is_rgb(op: Op) -> bool:
    return op.spec.dtype == "uint8" and op.spec.channels == _RGB


def _create_rules(
    name: str, pattern: Pattern, find: Callable[[Match], _Geometry | None]
) -> tuple[Rule, Rule]:
    """Return the rules of a geometry: into the slot of the sample, and into an image of uint8."""

    def bind_delivery(match: Match) -> Kernel | None:
        geometry, conversion = find(match), find_conversion(match, _DTYPES)
        if geometry is None or conversion is None:
            return None
        delivery = _Delivery(geometry, conversion, match[DeliverOp])
        return end_with_delivery(name, match, delivery.run, delivery.prepare)

    def bind_levels(match: Match) -> Kernel | None:
        geometry = find(match)
        return None if geometry is None else Kernel(name, partial(_run_to_levels, geometry))

    return Rule((*pattern, *CONVERTED), bind_delivery), Rule(pattern, bind_levels)


def create_rules() -> list[Rule]:
    """Return the rules of the extension; none if it is not built, or is off."""
    if _extension is None:
        return []
    resize = ResizeOp, Maybe(CropOp), Maybe(FlipOp)
    convert, _ = _create_rules("kernels.convert", (Maybe(FlipOp),), _find_flip)
    return [
        *_create_rules("kernels.warp", (WarpOp,), _find_warp),
        *_create_rules("kernels.resize", resize, _find_resize),
        convert,
    ]
