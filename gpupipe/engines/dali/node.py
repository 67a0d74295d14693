"""What images and arrays in DALI share: operators over a node, and what they are told of each
sample.

Steps work on such a node twice: once with a DataNode, which builds the graph, and then for every
batch without one, which only finds the values that the graph is fed. Sizes and windows are float64
NumPy in both, for a whole batch, (B, 2); or (2,), the same for all samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali import numbers, ops
from gpupipe.engines.dali.pending_ops import Emitted
from gpupipe.pipeline.geometry import affine_matrix
from gpupipe.pipeline.step import SampleIncompatible, Spec

Feed = Callable[[NDArray[Any]], Any]
"""Takes what one argument of an operator is for each sample of a batch, an array (B, ...), and
returns the DataNode for it.
"""


class Node(ABC):
    """The base of what a step's `dali` works on: see step.DaliImage for what each method means."""

    def __init__(
        self,
        data: Any,
        size: NDArray[np.float64],
        feed: Feed,
        device: Literal["cpu", "gpu"],
        spec: Spec,
    ) -> None:
        """data: DataNode, or None where only values are wanted.

        size: (B, 2), as step.DaliImage has it.
        """
        self.device: Literal["cpu", "gpu"] = device
        self.spec = spec
        self.step = ""
        self.emitted: list[Emitted] = []
        self._node = data
        self._size: Any = size
        self._count = len(size)
        self._feed = feed

    # --- asked by steps

    @property
    def size(self) -> Any:
        return self._size

    @property
    def width_height(self) -> Any:
        return self._size[..., ::-1]

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        self._ready()
        nodes = [self._feed(_single(v)) for v in values]
        self._on_pixels(op, lambda pixels: make(pixels, *nodes))
        if size is not None:
            self._size = np.asarray(size, np.float64)

    def pad(self, before: Any, after: Any, mode: str) -> None:
        self._ready()
        size, offset = self._size + before + after, np.asarray(before, np.float64)[..., ::-1]
        matrix = affine_matrix(np.broadcast_to(np.eye(2), (*offset.shape, 2)), np.zeros(2), offset)
        square, shape = self._matrix(matrix), self._argument(size, 1, np.float32)
        self._on_pixels(
            "experimental.warp_perspective",
            lambda pixels: ops.warp_border(pixels, square, shape, mode),
        )
        self._size = size

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: ops.Fill,
        shape: Any = None,
    ) -> None:
        self._ready()
        fill = fill * (self.spec.channels or 1) if len(fill) == 1 else fill
        matrix = affine_matrix(linear, source, output)
        size = None if shape is None else self._argument(shape, 1, np.float32)
        if self.device == "gpu" and len(set(fill)) == 1:
            flat = self._argument(matrix, 2, np.float32)
            self._on_pixels(
                "warp_affine",
                lambda pixels: ops.warp_affine(pixels, flat, size, interpolation, fill[0]),
            )
        else:
            square = self._matrix(matrix)
            self._on_pixels(
                "experimental.warp_perspective",
                lambda pixels: ops.warp_perspective(pixels, square, size, interpolation, fill),
            )
        self._size = self._size if shape is None else np.asarray(shape, np.float64)

    # --- asked by the engine

    def as_it_is(self) -> Any:
        """The DataNode, everything carried out, in the dtype and layout that it has."""
        self._ready()
        return self._node

    # --- carrying out

    @property
    def _dtype(self) -> str:
        """Of the pixels as they are now: all that was asked for and is not carried out left out."""
        return self.spec.dtype

    @abstractmethod
    def _on_pixels(self, op: str, make: Callable[[Any], Any]) -> None:
        """Emit an operator over pixels of layout HWC."""

    @abstractmethod
    def _ready(self) -> None:
        """Carry out all that was asked for before."""

    def _emit(self, op: str, steps: list[str], make: Callable[[Any], Any]) -> None:
        device = "mixed" if self.device == "gpu" and op.startswith("decoders.") else self.device
        self.emitted.append(Emitted(op, device, tuple(steps)))
        if self._node is not None:
            self._node = make(self._node)

    def _emit_through(self, op: str, steps: list[str], make: Callable[[Any], Any]) -> None:
        """The same, also if the operator does not take numbers of the dtype that there is: see
        pipeline/dtypes.py.
        """
        dtype = self._dtype
        self._emit(op, steps, lambda node: numbers.through(op, node, dtype, make))

    def _cast(self, made: str, scale: bool) -> None:
        """Emit a conversion to another dtype."""
        given = self._dtype
        factor = numbers.factor(given, made) if scale else None
        told = (
            self._wide(factor)
            if factor is not None and "float64" in (given, made)
            else np.float32(factor or 0.0)
        )
        make = (
            (lambda node: numbers.scaled(node, given, made, told))
            if scale
            else (lambda node: numbers.converted(node, given, made))
        )
        self._emit("cast", [self.step] if self.step else [], make)

    def _normalize_float64(self, mean: ops.Fill, std: ops.Fill, behind: int) -> None:
        """Emit (x - mean) / std. behind: how many axes follow the one of channels."""
        subtracted, divided = (self._wide(np.reshape(n, (-1, *[1] * behind))) for n in (mean, std))
        self._emit("arithmetic", [self.step], lambda node: (node - subtracted) / divided)

    def _wide(self, values: Any) -> Any:
        """float64 numbers, the same for all samples, as a DataNode: DALI's own constants are
        float32.
        """
        array = np.asarray(values, np.float64)
        node = self._feed(np.broadcast_to(array, (self._count, *array.shape)))
        return node if self._node is None or self.device == "cpu" else node.gpu()

    def _for_torch(self, dtype: str) -> Any:
        """The node, of `dtype`, as torch can take it over."""
        if self._node is not None:
            self._node = numbers.for_torch(self._node, dtype)
        return self._node

    def _check_inside(self, anchor: Any, shape: Any) -> None:
        """Raises SampleIncompatible where a window is not inside what it is cut from."""
        if self._node is not None:
            return
        outside = ((anchor < 0) | (anchor + shape > self._size)).any(-1)
        if outside.any():
            parts = (
                np.broadcast_to(v, (*outside.shape, v.shape[-1]))[outside]
                .reshape(-1, v.shape[-1])[0]
                .astype(int)
                .tolist()
                for v in (shape, anchor, self._size)
            )
            window, corner, room = parts
            by = "x".join(map(str, window)), "x".join(map(str, room))
            outside = f"the window of {by[0]} pixels at {corner} is not inside the image"
            raise SampleIncompatible(f"{outside}, which has {by[1]}")

    def _argument(self, values: Any, ndim: int, dtype: Any) -> Any:
        """What an operator is told: a DataNode where it differs from sample to sample, plain
        numbers where it has but `ndim` axes.
        """
        array = np.asarray(values).astype(dtype)
        if array.ndim > ndim:
            return self._feed(array)
        return array.ravel().tolist() if ndim else array.tolist()

    def _whole(self, values: Any) -> Any:
        return self._argument(values, 1, np.int32)

    def _matrix(self, matrix: NDArray[np.float64]) -> Any:
        """(..., 2, 3) as a perspective matrix."""
        last = np.broadcast_to([0.0, 0.0, 1.0], (*matrix.shape[:-2], 1, 3))
        return self._argument(np.concatenate([matrix, last], -2), 2, np.float32)


def _single(values: NDArray[Any]) -> NDArray[Any]:
    """In the type that DALI's operators take: int32 or float32."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
