"""The operations that the Tracer records: one frozen dataclass for each primitive.

An operation is one call for all samples of a batch; see Primitives for its meaning. Arguments that
differ between samples are sequences with an entry for each row of the batch. Operations that hold
programs, one for each branch, stand in program.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.pixels import Array
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.step import Spec

Fill = tuple[float, ...]
"""One number, or one per channel."""
Window = Sequence[int]
"""[top, left, height, width] in pixels."""
PadMode = Literal["edge", "reflect", "symmetric"]
Size = Sequence[int]
"""[height, width] in pixels."""


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
    """`windows` are the parts of the images that the next operations need; () for all of them."""

    options: DecodeOptions
    windows: Sequence[Window] = ()


@dataclass(frozen=True)
class CropOp(Op):
    """`fill` is None if the window must lie inside the image."""

    windows: Sequence[Window]
    fill: Fill | None


@dataclass(frozen=True)
class PadOp(Op):
    """`borders` are [top, left, bottom, right] in pixels."""

    borders: Sequence[Sequence[int]]
    mode: PadMode


@dataclass(frozen=True)
class ResizeOp(Op):
    sizes: Sequence[Size]
    interpolation: str
    antialias: bool


@dataclass(frozen=True)
class FlipOp(Op):
    """`flags` are [horizontal, vertical]."""

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
    """Return the fill of each channel."""
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
    """`values` are those of COLOR_OPS[name], (B, ...) each."""

    name: str
    values: Sequence[Array]

    def values_of(self, row: int) -> list[float | list[float]]:
        """Return the values of a sample as Python's numbers."""
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


@dataclass(frozen=True)
class DeliverOp(Op):
    """Writes each sample to its slot in the batch."""

    output: OutputBuffer
