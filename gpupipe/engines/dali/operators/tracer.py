"""Traces the primitives that steps call for a batch as subgraphs of DALI operators.

`DaliTracer` is the base of images (image.py) and arrays (array.py). It holds no pixels: it tracks
the sizes of the samples, and collects the operators on them. Sizes and windows are float64 NumPy
arrays: (B, 2) for a batch, or (2,) if they are the same for all samples. An argument with a batch
axis is fed to the graph. An argument without a batch axis is a constant of the graph.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.data_node import DataNode

from gpupipe.augment.elastic import Elastic
from gpupipe.engines.dali.operators import color, dtypes, fields, ops, subgraph
from gpupipe.engines.dali.operators.image_functions import call_torch, find_operators
from gpupipe.engines.dali.operators.ops import Floats, argument
from gpupipe.engines.dali.operators.remap import REMAP
from gpupipe.engines.dali.operators.subgraph import Array, Fed, Make, Subgraph, Value
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.geometry import affine_matrix, describe_small_image
from gpupipe.pipeline.primitives import Pair, Seeds
from gpupipe.pipeline.step import NoLoweringError, SampleIncompatibleError, Spec


class DaliTracer(ABC):
    """Turns the primitives that steps call into DALI operators, as far as images and arrays agree.

    See Primitives for what each method does.

    Args:
        size: The size of each sample along its spatial axes, (B, axes).

    Attributes:
        device: The device of the operators.
        spec: The spec of the data before the current step.
        step: The key of the current step.
        blame: Returns a context that names the current step in errors that its code raises.
        present: Which samples the calls of primitives apply to, bool (B,).
        history: For each traced step, by its key: its entry in the pipeline, and the sizes of the
            samples before and after the step.
    """

    annotations = None

    def __init__(self, size: NDArray[np.float64], device: ops.Device, spec: Spec) -> None:
        self.device: ops.Device = device
        self.spec, self.step = spec, ""
        self.blame: Callable[[], AbstractContextManager[None]] = nullcontext
        self.present: NDArray[np.bool_] = np.ones(len(size), bool)
        self.history: dict[str, tuple[Entry, Floats, Floats]] = {}
        self._size: Floats = size
        self._parts: list[Any] = []

    # --- called by the engine

    def subgraph(self) -> Subgraph:
        """Return all operators so far as one subgraph."""
        return subgraph.join([s for part in self._parts for s in part.subgraphs(self.device)])

    @abstractmethod
    def finish(self, dtype: str, layout: ops.Layout) -> None:
        """Add the conversion to the dtype and layout in which the samples are delivered."""

    def fork(self) -> Self:
        """Return a tracer with the current sizes and spec of the samples, and no operators."""
        forked = copy.copy(self)
        forked._parts, forked.history = [], {}
        return forked

    # --- called by steps

    @property
    def size(self) -> Floats:
        return self._size

    @property
    def width_height(self) -> Floats:
        return self._size[..., ::-1]

    def apply(self, op: str, make: Make, *values: Array, size: Any = None) -> None:
        self._on_pixels(op, make, *map(subgraph.convert_argument, values))
        if size is not None:
            self._size = np.asarray(size, np.float64)

    def pad(self, before: Any, after: Any, mode: str) -> None:
        size, offset = self._size + before + after, np.asarray(before, np.float64)[..., ::-1]
        matrix = affine_matrix(np.broadcast_to(np.eye(2), (*offset.shape, 2)), np.zeros(2), offset)
        self._on_pixels(
            "experimental.warp_perspective",
            partial(ops.warp_perspective, interpolation="nearest", border_mode=ops.BORDERS[mode]),
            _square(matrix),
            argument(size, 1, np.float32),
        )
        self._size = size

    def transpose(self) -> None:
        self._on_pixels("transpose", ops.swap_rows_and_columns)
        self._size = self._size[..., ::-1]

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: ops.Fill | None,
        shape: Any = None,
    ) -> None:
        ops.find_interpolation(interpolation)
        fill = self._each_channel(fill or (0.0,))  # DALI weighs the border once, with any fill
        matrix = affine_matrix(linear, source, output)
        size = None if shape is None else argument(shape, 1, np.float32)
        if self.device == "gpu" and len(set(fill)) == 1:
            make = partial(ops.warp_affine, interpolation=interpolation, fill=fill[0])
            self._on_pixels("warp_affine", make, argument(matrix, 2, np.float32), size)
        else:
            make = partial(ops.warp_perspective, interpolation=interpolation, fill_value=list(fill))
            self._on_pixels("experimental.warp_perspective", make, _square(matrix), size)
        self._size = self._size if shape is None else np.asarray(shape, np.float64)

    def perspective(self, matrix: Any, interpolation: str, fill: ops.Fill) -> None:
        ops.find_interpolation(interpolation)
        fill = self._each_channel(fill)
        make = partial(ops.warp_perspective, interpolation=interpolation, fill_value=list(fill))
        self._on_pixels(
            "experimental.warp_perspective", make, argument(matrix, 2, np.float32), None
        )

    def erase(self, anchor: Any, shape: Any, value: ops.Fill, seeds: Seeds | None = None) -> None:
        window = (argument(v, 1, np.float32) for v in (anchor, shape))
        self._on_pixels("erase", partial(ops.erase, value=value), *window)
        if seeds is not None:
            images = self.spec, self._size, self.present
            self.add(fields.fill_windows(*images, seeds, anchor, shape), False)

    def add(self, values: Fed, clip: bool) -> None:
        """Add int16 numbers to uint8 images, or float32 numbers to others; all (H, W, C)."""
        dtype = self.spec.dtype

        def make(pixels: DataNode, values: DataNode) -> DataNode:
            return color.add(pixels, self._on_device(values), dtype, clip)

        self._on_pixels("add", dtypes.in_float32(make, dtype), values)

    def add_noise(self, seeds: Seeds, mean: float, sigma: float, clip: bool) -> None:
        images = self.spec, self._size, self.present
        self.add(fields.make_noise(*images, seeds, mean, sigma), clip)

    def elastic(
        self, seeds: Seeds, alpha: Pair, sigma: Pair, interpolation: str, fill: ops.Fill
    ) -> None:
        ops.find_interpolation(interpolation)
        how, operator = Elastic(alpha, sigma), REMAP[self.device]
        moves = fields.make_displacements(self._size, self.present, seeds, how)
        make, arguments = operator(moves, self._size, how.reach, interpolation, fill)
        self._on_pixels(operator.__name__, dtypes.in_float32(make, self.spec.dtype), *arguments)

    def call_torch(self, function: Callable[..., Any], *values: Array, size: Any = None) -> None:
        if self.device == "gpu":
            raise NoLoweringError(
                "it calls torch on the CPU: set 'device: cpu', or leave the step out"
            )
        self._on_pixels(
            "python_function",
            lambda pixels, *nodes: call_torch(pixels, nodes, function),
            *map(subgraph.convert_argument, values),
        )
        if size is not None:
            self._size = np.asarray(size, np.float64)

    def color_matrix(self, matrix: Any) -> None:
        rows = np.asarray(matrix, np.float64)
        dtype = self.spec.dtype
        # On a GPU color_space_conversion launches one kernel per sample of the batch. On a CPU it
        # takes a third of the time of a coord_transform with three rows.
        has_equal_rows = rows.ndim == 2 and len(rows) == 3 and bool((rows == rows[0]).all())
        repeat = has_equal_rows and dtype == "uint8" and self.device == "cpu"
        rows = rows[:1] if repeat else rows
        if not (repeat and rows.tolist() == [[1.0]]):
            make = partial(ops.transform_channels, rows=rows.shape[-2], dtype=dtype)
            self._on_pixels("coord_transform", make, argument(rows, 2, np.float32))
        if repeat:
            self._on_pixels("color_space_conversion", ops.repeat_channel)

    def color(self, op: str, *values: Any) -> None:
        make, arrays = find_operators(op, self.spec, self.device, values, self._size, self.present)
        if make is not None:
            make = dtypes.in_float32(make, self.spec.dtype)
            self._on_pixels(op, make, *map(subgraph.convert_argument, arrays))

    def switch(self, index: Any, branches: Sequence[Callable[[Any], None]]) -> None:
        chosen = np.asarray(index)
        parts = [self._trace(branch, chosen == n) for n, branch in enumerate(branches)]
        self._add(subgraph.switch(chosen, [part.subgraph() for part in parts]))
        self._size = subgraph.merge_sizes(self._size, [(part.present, part.size) for part in parts])

    def blend(self, branches: Sequence[Callable[[Any], None]], weights: Any) -> None:
        parts = [self._trace(branch, self.present).subgraph() for branch in branches]
        columns = [subgraph.convert_argument(column) for column in np.asarray(weights).T]

        def total(images: list[Any], *factors: Any) -> Any:
            return color.blend(images, factors, self.device)

        last = subgraph.operator("blend", self.device, self._steps, total, *columns)
        self._add(subgraph.blend(parts, last))

    def _trace(self, branch: Callable[[Any], None], present: NDArray[np.bool_]) -> Self:
        """Run a branch of a switch or blend on a fork of this tracer, and return the fork.

        `present` says which samples go through the branch, bool (B,).
        """
        part = self.fork()
        part.present = self.present & present
        branch(part)
        return part

    # --- collecting operators

    def _add(self, part: Any) -> None:
        self._parts.append(part)

    def _on_pixels(self, op: str, make: Make, *arguments: Value) -> None:
        """Add an operator; `make` gets and returns a DataNode of layout HWC."""
        self._emit_through(op, make, *arguments)

    def _emit(self, op: str, make: Make, *arguments: Value) -> None:
        """Add an operator of the current step. Errors while the graph is built name the step."""
        blame = self.blame

        def make_blamed(pixels: Any, *nodes: Any) -> Any:
            with blame():
                return make(pixels, *nodes)

        self._add(subgraph.operator(op, self.device, self._steps, make_blamed, *arguments))

    @property
    def _steps(self) -> tuple[str, ...]:
        return (self.step,) if self.step else ()

    def _emit_through(self, op: str, make: Make, *arguments: Value) -> None:
        """Add an operator. If it does not support the current dtype, convert before and after."""
        self._emit(op, dtypes.through_supported(op, self.spec.dtype, make), *arguments)

    def _cast(self, target: str, scale: bool) -> None:
        """Add a conversion to the dtype `target`, with scaling of the values if `scale` is set."""
        current = self.spec.dtype
        if not scale:
            self._emit("cast", lambda node: dtypes.convert(node, current, target))
            return
        factor = dtypes.scale_factor(current, target)
        is_fed = factor is not None and "float64" in (current, target)
        operand = self._float64(factor) if is_fed else factor and np.float32(factor)

        def convert(node: Any, factor: Any) -> Any:
            factor = self._on_device(factor) if is_fed else factor
            return dtypes.convert_scaled(node, current, target, factor)

        self._emit("cast", convert, operand)

    def _normalize_float64(self, mean: ops.Fill, std: ops.Fill, trailing_axes: int) -> None:
        """Add an operator for (x - mean) / std; `trailing_axes` axes follow the channel axis."""
        self._emit(
            "arithmetic",
            lambda node, mean, std: (node - self._on_device(mean)) / self._on_device(std),
            *(self._float64(np.reshape(n, (-1, *[1] * trailing_axes))) for n in (mean, std)),
        )

    def _float64(self, values: Any) -> NDArray[np.float64]:
        """Repeat values for each sample, to feed them as float64: DALI's constants are float32."""
        array = np.asarray(values, np.float64)
        return np.broadcast_to(array, (len(self.present), *array.shape))

    def _on_device(self, node: DataNode) -> DataNode:
        return node.gpu() if self.device == "gpu" else node

    def _to_torch_dtype(self, dtype: str) -> None:
        """Reinterpret samples of `dtype` as a dtype that DALI can hand to torch."""
        self._add(Subgraph(lambda node: dtypes.for_torch(node, dtype)))

    def _each_channel(self, fill: ops.Fill) -> ops.Fill:
        return fill * (self.spec.channels or 1) if len(fill) == 1 else fill

    def _check_inside(self, anchor: Any, shape: Any) -> None:
        """Raise SampleIncompatibleError if a window is not inside the image."""
        outside = ((anchor < 0) | (anchor + shape > self._size)).any(-1) & self.present
        if outside.any():
            window, corner, room = (
                np.broadcast_to(v, (*outside.shape, v.shape[-1]))[outside][0].astype(int).tolist()
                for v in (shape, anchor, self._size)
            )
            if any(side > limit for side, limit in zip(window, room, strict=True)):
                raise SampleIncompatibleError(describe_small_image(room, window))
            by = "x".join(map(str, window)), "x".join(map(str, room))
            raise SampleIncompatibleError(
                f"the window of {by[0]} pixels at {corner} is not inside the image, which has "
                f"{by[1]}"
            )


def _square(matrix: NDArray[np.float64]) -> Any:
    """Extend affine matrices (..., 2, 3) to (..., 3, 3), as an argument of a perspective warp."""
    last = np.broadcast_to([0.0, 0.0, 1.0], (*matrix.shape[:-2], 1, 3))
    return argument(np.concatenate([matrix, last], -2), 2, np.float32)
