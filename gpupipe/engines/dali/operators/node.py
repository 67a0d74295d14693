"""The base of images and arrays in DALI: the primitives that need no more than operators."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali.operators import color_functions, ops, remap
from gpupipe.engines.dali.operators.branches import Feed, feed_part, merge_sizes
from gpupipe.engines.dali.operators.color import add, blend, leave_alone
from gpupipe.engines.dali.operators.emitter import Emitter, convert_argument
from gpupipe.engines.dali.operators.torch_call import call_torch
from gpupipe.pipeline.geometry import affine_matrix
from gpupipe.pipeline.step import NoLoweringError


class Node(Emitter):
    """The primitives that need no more than operators; Primitives documents the methods."""

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        self._ready()
        nodes = [self._feed(convert_argument(v)) for v in values]
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
        fill: ops.Fill | None,
        shape: Any = None,
    ) -> None:
        self._ready()
        fill = fill or (0.0,)  # DALI weighs the border once, with any fill
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

    def add(self, values: NDArray[Any], clip: bool) -> None:
        self._ready()
        dtype, node = self.spec.dtype, self._feed(values)
        if self.device == "gpu" and node is not None:
            node = node.gpu()
        make = partial(add, dtype=dtype, clip=clip)
        self._on_pixels("add", lambda x: color_functions.apply(make, x, [node], dtype))

    def remap(
        self, displacement: NDArray[Any], reach: tuple[int, int], interpolation: str, fill: ops.Fill
    ) -> None:
        self._ready()
        dtype = self.spec.dtype
        operator = remap.REMAP[self.device]
        make, arrays = operator(displacement, reach, interpolation, fill)
        nodes = [self._feed(array) for array in arrays]
        self._on_pixels(operator.__name__, lambda x: color_functions.apply(make, x, nodes, dtype))

    def call_torch(self, function: Callable[[Any], Any]) -> None:
        if self.device == "gpu":
            raise NoLoweringError(
                "it calls torch on the CPU: set 'device: cpu', or leave the step out"
            )
        self._ready()
        self._on_pixels("python_function", lambda pixels: call_torch(pixels, [], function))

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
            op, spec, self.device, values, size, self.present
        )
        nodes = [self._feed(convert_argument(array)) for array in arrays]
        if make is not leave_alone:
            self._on_pixels(op, lambda x: color_functions.apply(make, x, nodes, spec.dtype))

    def switch(self, index: Any, branches: Sequence[Callable[[Any], None]]) -> None:
        self._ready()
        parts: list[Node] = []
        self._node = self._run_branches(
            np.asarray(index), list(enumerate(branches)), self._node, self._feed, parts
        )
        self.emitted += [emitted for part in parts for emitted in part.emitted]
        self._size = merge_sizes(self._size, [(part.present, part._size) for part in parts])

    def blend(self, branches: Sequence[Callable[[Any], None]], weights: Any) -> None:
        parts = [self.fork() for _ in branches]
        for part, branch in zip(parts, branches, strict=True):
            branch(part)
            part._ready()
            self.emitted += part.emitted
        nodes = [self._feed(convert_argument(np.asarray(weights)[:, n])) for n in range(len(parts))]
        pixels = [part._node for part in parts]
        self._emit("blend", [self.step], lambda _: blend(pixels, nodes, self.device))

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
            part.present = self.present & (index == number)
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
