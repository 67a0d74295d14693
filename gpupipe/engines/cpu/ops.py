"""The operations that the Tracer records.

An operation is one call of a primitive for all samples of a batch; see Primitives for its meaning.
Arguments that differ between samples are sequences with an entry for each row of the batch.
program.py defines the operations with branches, and delivery.py defines DeliverOp.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gpupipe.augment.elastic import Elastic
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.cpu.pixels import Array
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.geometry import affine_matrix
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.installation import find_extension

_extension = find_extension()

Fill = tuple[float, ...]
"""One number, or one per channel."""
Window = Sequence[int]
"""[top, left, height, width] in pixels."""
Rows = NDArray[np.int64]
"""Whole numbers for each sample, (B, n): a window, a size, flags. `as_ints` reads a row."""
PadMode = Literal["edge", "reflect", "symmetric"]
Size = Sequence[int]
"""[height, width] in pixels."""


def as_ints(rows: Rows | NDArray[np.uint8], row: int) -> list[int]:
    """Return a row as Python integers."""
    numbers: list[int] = rows[row].tolist()
    return numbers


def are_inside(windows: Rows, sizes: Rows) -> bool:
    """Return whether each window lies inside its image [height, width], and has pixels."""
    corners, shapes = windows[:, :2], windows[:, 2:]
    return bool(((corners >= 0) & (shapes > 0) & (corners + shapes <= sizes)).all())


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
    def steps(self) -> tuple[str, ...]:
        """The keys of all steps whose calls this is; several if calls were joined."""
        return (self.step,)

    @property
    def primitive(self) -> str:
        """The name of the primitive, such as "color_matrix"."""
        names = re.findall("[A-Z][a-z]*", type(self).__name__.removesuffix("Op"))
        return "_".join(names).lower()


@dataclass(frozen=True)
class DecodeOp(Op):
    """Decodes only `windows[row]` of each image; without windows, decodes whole images.

    `sizes` is [height, width] of the decoded images, (B, 2), if they are known.
    """

    options: DecodeOptions
    windows: Rows | None = None
    sizes: Rows | None = None


@dataclass(frozen=True)
class JoinedOp(Op):
    """An operation that also does the work of operations before it, of the `earlier_steps`."""

    earlier_steps: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def steps(self) -> tuple[str, ...]:
        return (*self.earlier_steps, self.step)


@dataclass(frozen=True)
class CropOp(JoinedOp):
    """Cuts out `windows[row]`. `fill` is None if the window must lie inside the image."""

    windows: Rows
    fill: Fill | None

    def with_windows(self, windows: Rows) -> "CropOp":
        """Return the operation with other windows. `dataclasses.replace` takes longer."""
        return CropOp(self.step, self.spec, windows, self.fill, earlier_steps=self.earlier_steps)


@dataclass(frozen=True)
class PadOp(Op):
    """Adds `borders[row]` around each image: [top, left, bottom, right] in pixels."""

    borders: Rows
    mode: PadMode


@dataclass(frozen=True)
class ResizeOp(Op):
    sizes: Rows
    interpolation: str
    antialias: bool


@dataclass(frozen=True)
class FlipOp(JoinedOp):
    """Flips each image. `flags[row]` is [horizontal, vertical]: 1 to flip, 0 not to."""

    flags: NDArray[np.uint8]


@dataclass(frozen=True)
class TransposeOp(Op):
    """Swaps rows and columns."""


@dataclass(frozen=True)
class ResampleOp(Op):
    """Warps each image by its matrix.

    `matrices`, (B, 2, 3) or (B, 3, 3), map pixel indices of the output to those of the input.
    """

    matrices: NDArray[np.float64]
    sizes: Rows
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
    """Sets the pixels in `windows[row]` to `value`, or to noise if there are `seeds`.

    A window without pixels erases nothing.
    """

    windows: Rows
    value: Fill
    seeds: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class AddNoiseOp(Op):
    """Adds normal noise, whose mean and sigma are in units of the dtype's range."""

    seeds: NDArray[np.int64]
    mean: float
    sigma: float
    clip: bool


@dataclass(frozen=True)
class ElasticOp(Op):
    seeds: NDArray[np.int64]
    displacements: Elastic
    interpolation: str
    fill: Fill


@dataclass(frozen=True)
class ColorMatrixOp(Op):
    matrices: NDArray[np.float64]
    rows: NDArray[np.bool_] | None = None
    """The samples to change, (B,); None for all. Only kernels.color and cv2.LUT read it."""


@dataclass(frozen=True)
class ColorOp(Op):
    """Runs the color function COLOR_OPS[name]. Each of its arguments is an array (B, ...)."""

    name: str
    values: Sequence[Array]
    rows: NDArray[np.bool_] | None = None

    def values_of(self, row: int) -> list[float | list[float]]:
        """Return the arguments of the color function for the sample in `row`, as Python numbers."""
        return [values[row].tolist() for values in self.values]


@dataclass(frozen=True)
class ChooseColorOp(Op):
    """Runs one of several color functions on each sample: `names[index[row]]`; "" runs none.

    `values` has the number of each function for each sample, (B,), or one array for all functions.
    Only kernels.color runs this operation, and clips the numbers.
    """

    names: tuple[str, ...]
    values: Sequence[NDArray[np.float64]]
    index: Array
    rows: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class ToDtypeOp(Op):
    dtype: str
    scale: bool


@dataclass(frozen=True)
class NormalizeOp(Op):
    mean: Fill
    std: Fill


class TorchFunction(Protocol):
    """Computes an image from an image, and from the sample's part of some arrays."""

    def __call__(self, image: torch.Tensor, /, *values: Array) -> torch.Tensor: ...


@dataclass(frozen=True)
class CallTorchOp(Op):
    function: TorchFunction
    values: Sequence[Array] = ()


@dataclass(frozen=True)
class TorchOp(Op):
    """Runs a step in torch.

    Attributes:
        entry: The step, as an entry of the pipeline.
        parameters: The step's parameters by name, each an array (B, ...) with a row per sample.
    """

    entry: Entry
    parameters: Mapping[str, Array]


@dataclass(frozen=True)
class CheckOp(Op):
    """Checks the samples against the output spec of a step."""

    entry: Entry


def in_indices(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert matrices for coordinates into matrices for pixel indices.

    The centre of pixel n has the coordinate n + 0.5. The shape of the matrices, (B, 2, 3) or
    (B, 3, 3), stays.
    """
    shifted = matrices.copy()
    shifted[:, :, 2] += 0.5 * (matrices[:, :, 0] + matrices[:, :, 1])
    last = shifted[:, 2:] if shifted.shape[1] == 3 else np.array([[[0.0, 0.0, 1.0]]])
    shifted[:, :2] -= 0.5 * last
    return shifted


def find_warp_matrices(
    count: int, linear: ArrayLike, source: ArrayLike, output: ArrayLike
) -> NDArray[np.float64]:
    """Return the matrices for pixel indices, (count, 2, 3), for the arguments of Primitives.warp.

    Each argument has a row for each sample, or is the same for all of them.
    """
    arrays = [np.asarray(array, np.float64) for array in (linear, source, output)]
    if _extension is not None and all(a.ndim > 1 and len(a) == count for a in arrays[1:]):
        matrices = np.empty((count, 2, 3))
        if arrays[0].ndim == 2:
            arrays[0] = np.broadcast_to(arrays[0], (count, 2, 2))
        rows = [np.ascontiguousarray(array) for array in arrays]
        _extension.warp_matrices(*rows, matrices)
        return matrices
    matrix = affine_matrix(*arrays)
    return in_indices(np.broadcast_to(matrix, (count, 2, 3)))
