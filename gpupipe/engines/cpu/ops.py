"""The operations that the Tracer records, and the windows of images that a decode needs for them.

An operation is one call of a primitive for all samples of a batch; see Primitives for its meaning.
Arguments that differ between samples are sequences with an entry for each row of the batch.
program.py defines the operations with branches, and delivery.py defines DeliverOp.

A crop, or a warp that enlarges, needs only a part of the image. The extension `gpupipe._jpeg`
decodes that part alone. Its pixels equal those of a decode of the whole image:

    DecodeOp, CropOp    add_windows -> DecodeOp(windows=...), CropOp

The decoded array still has the size of the whole image. Its pixels outside the window are
undefined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.cpu.pixels import Array
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.installation import find_extension

Fill = tuple[float, ...]
"""One number, or one per channel."""
Window = Sequence[int]
"""[top, left, height, width] in pixels."""
PadMode = Literal["edge", "reflect", "symmetric"]
Size = Sequence[int]
"""[height, width] in pixels."""
_Corner = NDArray[np.float64]
"""[y, x] of each sample, (B, 2), in pixels."""

_MARGIN = 2
"""Pixels that are added on each side of a computed window, since kernels round coordinates."""
_FAR = 1e9
"""A coordinate in pixels that is outside every image. Computed corners are clipped to it."""
_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_jpeg = find_extension("_jpeg")


def is_inside(window: Window, size: Size) -> bool:
    """Return whether a window lies inside an image [height, width]."""
    top, left, height, width = window
    return min(top, left) >= 0 and top + height <= size[0] and left + width <= size[1]


@dataclass(frozen=True)
class Op:
    """One call of a primitive, for all samples of a batch.

    Attributes:
        step: The key of the step that made the call; "" for the loader itself.
        spec: Shape, dtype and layout of the samples before the call.
    """

    step: str
    spec: Spec

    @property
    def primitive(self) -> str:
        """The name of the primitive, such as "color_matrix"."""
        words = re.findall("[A-Z][a-z]*", type(self).__name__.removesuffix("Op"))
        return "_".join(words).lower()


@dataclass(frozen=True)
class DecodeOp(Op):
    """`windows[row]` is the part of the image to decode; with () all images are decoded whole."""

    options: DecodeOptions
    windows: Sequence[Window] = ()


@dataclass(frozen=True)
class CropOp(Op):
    """`fill` is None if the window must lie inside the image."""

    windows: Sequence[Window]
    fill: Fill | None


@dataclass(frozen=True)
class PadOp(Op):
    """`borders[row]` is [top, left, bottom, right] in pixels."""

    borders: Sequence[Sequence[int]]
    mode: PadMode


@dataclass(frozen=True)
class ResizeOp(Op):
    sizes: Sequence[Size]
    interpolation: str
    antialias: bool


@dataclass(frozen=True)
class FlipOp(Op):
    """`flags[row]` is [horizontal, vertical]: 1 to flip, 0 not to."""

    flags: Sequence[Sequence[int]]


@dataclass(frozen=True)
class ResampleOp(Op):
    """`matrices`, (B, 2, 3) or (B, 3, 3), map indices of output pixels to indices of the input."""

    matrices: NDArray[np.float64]
    sizes: Sequence[Size]
    interpolation: str
    fill: Fill | None


@lru_cache(maxsize=16)
def spread_fill(fill: Fill | None, channels: int) -> NDArray[np.float64] | None:
    """Return the fill as one value per channel; None if there is no fill."""
    return None if fill is None else np.full(channels, fill, np.float64)


@dataclass(frozen=True)
class WarpOp(ResampleOp):
    pass


@dataclass(frozen=True)
class PerspectiveOp(ResampleOp):
    pass


@dataclass(frozen=True)
class EraseOp(Op):
    """A window without pixels erases nothing."""

    windows: Sequence[Window]
    value: Fill


@dataclass(frozen=True)
class AddOp(Op):
    values: Array
    clip: bool


@dataclass(frozen=True)
class RemapOp(Op):
    displacement: NDArray[np.float32]
    interpolation: str
    fill: Fill


@dataclass(frozen=True)
class ColorMatrixOp(Op):
    matrices: NDArray[np.float64]


@dataclass(frozen=True)
class ColorOp(Op):
    """The function COLOR_OPS[name], with an array (B, ...) for each value that it takes."""

    name: str
    values: Sequence[Array]

    def values_of(self, row: int) -> list[float | list[float]]:
        """Return the values of the sample in `row` as Python numbers."""
        return [values[row].tolist() for values in self.values]


@dataclass(frozen=True)
class ToDtypeOp(Op):
    dtype: str
    scale: bool


@dataclass(frozen=True)
class NormalizeOp(Op):
    mean: Fill
    std: Fill


@dataclass(frozen=True)
class CallTorchOp(Op):
    function: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class TorchOp(Op):
    """A step that runs in torch, with its parameters (B, ...)."""

    entry: Entry
    parameters: Mapping[str, Array]


@dataclass(frozen=True)
class CheckOp(Op):
    """A check of the samples against the output spec of a step."""

    entry: Entry


def add_windows(ops: Sequence[Op], size: NDArray[np.float64]) -> list[Op]:
    """Return `ops`. The DecodeOp gets windows if a crop or warp reads only parts of the images.

    Args:
        ops: Successive operations. Only the next operation uses the output of each.
        size: [height, width] of the decoded images, (B, 2).
    """
    if _jpeg is None:
        return list(ops)
    match list(ops[:3]):
        case [DecodeOp() as decode, CropOp() as crop, *_]:
            first, end = _find_edges(crop)
        case [DecodeOp() as decode, ResizeOp() as resize, CropOp() as crop]:
            first, end = _find_resized(size / np.array(resize.sizes), resize, crop)
        case [DecodeOp() as decode, WarpOp() as warp, *_]:
            first, end = _find_warped(warp)
        case _:
            return list(ops)
    first, end = np.maximum(first, 0.0), np.minimum(end, size)
    is_inside = (end > first).all(-1, keepdims=True)  # where it is not, decode the whole image
    first, end = np.where(is_inside, first, 0.0), np.where(is_inside, end, size)
    windows = np.concatenate([first, end - first], -1).astype(np.int64).tolist()
    return [replace(decode, windows=windows), *ops[1:]]


def _find_edges(crop: CropOp) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the windows of a crop."""
    windows = np.array(crop.windows, np.float64)
    return windows[:, :2], windows[:, :2] + windows[:, 2:]


def _find_resized(
    scale: NDArray[np.float64], resize: ResizeOp, crop: CropOp
) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the pixels that a resize reads for a crop.

    `crop` cuts the output of `resize`. `scale` is the input size over the output size, (B, 2).
    """
    first, end = _find_edges(crop)
    reach = np.ceil(np.maximum(scale, 1.0) * _FILTER_RADIUS[resize.interpolation]) + _MARGIN
    return np.floor(first * scale) - reach, np.ceil(end * scale) + reach


def _find_warped(warp: WarpOp) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the pixels that a warp reads, with a margin."""
    bottom, right = np.array(warp.sizes, np.float64).T - 1.0
    none, one = np.zeros_like(right), np.ones_like(right)
    corners = np.array([[none, right, none, right], [none, none, bottom, bottom], [one] * 4])
    points = np.einsum("bij,jkb->bik", warp.matrices, corners)[:, ::-1]  # (B, 2, 4), y before x
    points = np.clip(points, -_FAR, _FAR)
    end = np.ceil(points.max(-1)) + 1 + _FILTER_RADIUS[warp.interpolation] + _MARGIN
    return np.floor(points.min(-1)) - _MARGIN, end
