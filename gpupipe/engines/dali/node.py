"""The base of images and arrays in DALI: operators over a node, and their per-sample arguments.

Steps run on a Node in two ways. If it holds a DataNode, the steps build the graph. Later, for every
batch, it holds none, and the steps only compute the argument values that the graph is fed. In both
cases sizes and windows are float64 NumPy arrays: (B, 2) for a batch, or (2,) if they are the same
for all samples.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali import color_functions, numbers, ops
from gpupipe.engines.dali.branches import Feed, feed_part, merge_sizes
from gpupipe.engines.dali.color import blend, leave_alone
from gpupipe.engines.dali.pending_ops import Emitted
from gpupipe.pipeline.geometry import affine_matrix
from gpupipe.pipeline.step import SampleIncompatible, Spec

if TYPE_CHECKING:
    from typing_extensions import Self


class Node(ABC):
    """The primitives that need no more than operators; Primitives documents the methods.

    Attributes:
        device: The device of the operators.
        spec: The spec of the data as the current step sees it.
        step: The key of the current step.
        emitted: The operators so far, in order.
    """

    def __init__(
        self,
        data: Any,
        size: NDArray[np.float64],
        feed: Feed,
        device: Literal["cpu", "gpu"],
        spec: Spec,
    ) -> None:
        """Start from input data.

        Args:
            data: DataNode, or None to compute only argument values.
            size: The size of each sample, (B, 2), as in Primitives.
            feed: Feeds one operator argument to the graph.
            device: The device of the operators.
            spec: The spec of the data.
        """
        self.device: Literal["cpu", "gpu"] = device
        self.spec = spec
        self.step = ""
        self.emitted: list[Emitted] = []
        self._node = data
        self._size: Any = size
        self._count = len(size)
        self._feed = feed
        self._present: NDArray[np.bool_] = np.ones(len(size), bool)

    # --- called by steps

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

    def perspective(self, matrix: Any, interpolation: str, fill: ops.Fill) -> None:
        self._ready()
        fill = fill * (self.spec.channels or 1) if len(fill) == 1 else fill
        square = self._argument(matrix, 2, np.float32)
        self._on_pixels(
            "experimental.warp_perspective",
            lambda pixels: ops.warp_perspective(pixels, square, None, interpolation, fill),
        )

    def erase(self, anchor: Any, shape: Any, value: ops.Fill) -> None:
        self._ready()
        start, extent = (self._argument(v, 1, np.float32) for v in (anchor, shape))
        self._on_pixels("erase", lambda pixels: ops.erase(pixels, start, extent, value))

    def color_matrix(self, matrix: Any) -> None:
        self._ready()
        rows = np.asarray(matrix, np.float64)
        dtype = self.spec.dtype
        # On a GPU color_space_conversion launches one kernel per sample of the batch. On a CPU it
        # takes a third of the time of a coord_transform with three rows.
        has_equal_rows = rows.ndim == 2 and len(rows) == 3 and bool((rows == rows[0]).all())
        repeat = has_equal_rows and dtype == "uint8" and self.device == "cpu"
        rows = rows[:1] if repeat else rows
        if not (repeat and rows.tolist() == [[1.0]]):
            argument, count = self._argument(rows, 2, np.float32), rows.shape[-2]
            self._on_pixels(
                "coord_transform",
                lambda pixels: ops.transform_channels(pixels, argument, count, dtype),
            )
        if repeat:
            self._on_pixels("color_space_conversion", ops.repeat_channel)

    def color(self, op: str, *values: Any) -> None:
        self._ready()
        spec, size = self.spec, None if self._node is not None else self._size
        make, arrays = color_functions.find_operators(
            op, spec, self.device, values, size, self._present
        )
        nodes = [self._feed(_single(array)) for array in arrays]
        if make is not leave_alone:
            self._on_pixels(op, lambda x: color_functions.apply(make, x, nodes, spec.dtype))

    def switch(self, index: Any, branches: Sequence[Callable[[Any], None]]) -> None:
        self._ready()
        parts: list[Node] = []
        self._node = self._run_branches(
            np.asarray(index), list(enumerate(branches)), self._node, self._feed, parts
        )
        self.emitted += [emitted for part in parts for emitted in part.emitted]
        self._size = merge_sizes(self._size, [(part._present, part._size) for part in parts])

    def blend(self, branches: Sequence[Callable[[Any], None]], weights: Any) -> None:
        parts = [self.fork() for _ in branches]
        for part, branch in zip(parts, branches, strict=True):
            branch(part)
            part._ready()
            self.emitted += part.emitted
        nodes = [self._feed(_single(np.asarray(weights)[:, n])) for n in range(len(parts))]
        pixels = [part._node for part in parts]
        self._emit("blend", [self.step], lambda _: blend(pixels, nodes, self.device))

    # --- called by the engine

    def fork(self) -> Self:
        """Return a copy that goes on from these pixels, such as a view.

        All deferred operations are emitted before, so that the copies share them.
        """
        self._ready()
        forked = copy.copy(self)
        forked.emitted = []
        return forked

    def as_it_is(self) -> Any:
        """Emit all deferred operations, and return the DataNode in its own dtype and layout."""
        self._ready()
        return self._node

    # --- emitting operators

    def _run_branches(
        self,
        index: NDArray[Any],
        branches: list[tuple[int, Callable[[Any], None]]],
        node: Any,
        feed: Feed,
        parts: list[Node],
    ) -> Any:
        """Run branches on the samples of a node that take one of them.

        Halves of the branches split the batch, so that data and arguments pass through few splits.
        A split or merge copies no pixels.

        Args:
            index: The branch of each sample of the whole batch.
            branches: The branches, with their numbers.
            node: Their samples as a DataNode, or None to compute only argument values.
            feed: Feeds an argument of the whole batch, and returns the part of these samples.
            parts: Gets what each branch worked on appended.

        Returns:
            The DataNode of the results, in the order of the samples.
        """
        if len(branches) == 1:
            number, branch = branches[0]
            part = copy.copy(self)
            part._node, part._feed, part.emitted = node, feed, []
            part._present = self._present & (index == number)
            branch(part)
            part._ready()
            parts.append(part)
            return part._node
        middle = len(branches) // 2
        is_low = feed(index < branches[middle][0])
        halves = (None, None) if node is None else ops.split(node, is_low)
        low, high = (
            self._run_branches(index, half, halves[side], feed_part(feed, is_low, side), parts)
            for side, half in enumerate((branches[:middle], branches[middle:]))
        )
        return None if node is None else ops.merge(low, high, is_low)

    @property
    def _dtype(self) -> str:
        """The dtype of the current node, without the operations that are still deferred."""
        return self.spec.dtype

    @abstractmethod
    def _on_pixels(self, op: str, make: Callable[[Any], Any]) -> None:
        """Emit an operator over pixels of layout HWC."""

    @abstractmethod
    def _ready(self) -> None:
        """Emit all deferred operations."""

    def _emit(self, op: str, steps: list[str], make: Callable[[Any], Any]) -> None:
        device = "mixed" if self.device == "gpu" and op.startswith("decoders.") else self.device
        self.emitted.append(Emitted(op, device, tuple(steps)))
        if self._node is not None:
            self._node = make(self._node)

    def _emit_through(self, op: str, steps: list[str], make: Callable[[Any], Any]) -> None:
        """Emit an operator, and convert the dtype around it if the operator does not support it.

        dtypes.py has the table of supported dtypes.
        """
        dtype = self._dtype
        self._emit(op, steps, lambda node: numbers.apply_as_supported(op, node, dtype, make))

    def _cast(self, target: str, scale: bool) -> None:
        """Emit a conversion to another dtype."""
        current = self._dtype
        factor = numbers.scale_factor(current, target) if scale else None
        operand = (
            self._float64_node(factor)
            if factor is not None and "float64" in (current, target)
            else np.float32(factor or 0.0)
        )
        make = (
            (lambda node: numbers.convert_scaled(node, current, target, operand))
            if scale
            else (lambda node: numbers.convert(node, current, target))
        )
        self._emit("cast", [self.step] if self.step else [], make)

    def _normalize_float64(self, mean: ops.Fill, std: ops.Fill, trailing_axes: int) -> None:
        """Emit (x - mean) / std; `trailing_axes` axes follow the channel axis."""
        mean_node, std_node = (
            self._float64_node(np.reshape(n, (-1, *[1] * trailing_axes))) for n in (mean, std)
        )
        self._emit("arithmetic", [self.step], lambda node: (node - mean_node) / std_node)

    def _float64_node(self, values: Any) -> Any:
        """Feed float64 numbers that are the same for all samples: DALI's constants are float32."""
        array = np.asarray(values, np.float64)
        node = self._feed(np.broadcast_to(array, (self._count, *array.shape)))
        return node if self._node is None or self.device == "cpu" else node.gpu()

    def _for_torch(self, dtype: str) -> Any:
        """Return the node, of `dtype`, in a dtype in which DALI hands it to torch."""
        if self._node is not None:
            self._node = numbers.for_torch(self._node, dtype)
        return self._node

    def _check_inside(self, anchor: Any, shape: Any) -> None:
        """Raise SampleIncompatible if a window is not inside the image; skipped for DataNodes."""
        if self._node is not None:
            return
        outside = ((anchor < 0) | (anchor + shape > self._size)).any(-1) & self._present
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
        """Return an operator's argument, which has `ndim` axes per sample.

        Values with a batch axis become a DataNode. Values without one become plain numbers.
        """
        array = np.asarray(values).astype(dtype)
        if array.ndim > ndim:
            return self._feed(array)
        return array.ravel().tolist() if ndim else array.tolist()

    def _whole(self, values: Any) -> Any:
        return self._argument(values, 1, np.int32)

    def _matrix(self, matrix: NDArray[np.float64]) -> Any:
        """Return an affine matrix (..., 2, 3) as a perspective matrix argument (..., 3, 3)."""
        last = np.broadcast_to([0.0, 0.0, 1.0], (*matrix.shape[:-2], 1, 3))
        return self._argument(np.concatenate([matrix, last], -2), 2, np.float32)


def _single(values: NDArray[Any]) -> NDArray[Any]:
    """Convert to the types of DALI's arguments: int32 or float32."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
