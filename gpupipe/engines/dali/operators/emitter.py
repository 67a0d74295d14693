"""Emits DALI operators one after another, with arguments that differ from sample to sample.

Steps run on an Emitter in two ways. If it holds a DataNode, the steps build the graph. Later, for
every batch, it holds none, and the steps only compute the argument values that the graph is fed. In
both cases sizes and windows are float64 NumPy arrays: (B, 2) for a batch, or (2,) if they are the
same for all samples.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali.operators import numbers, ops
from gpupipe.engines.dali.operators.branches import Feed
from gpupipe.engines.dali.operators.pending_ops import Emitted
from gpupipe.pipeline.geometry import describe_small_image
from gpupipe.pipeline.step import SampleIncompatibleError, Spec

if TYPE_CHECKING:
    from typing_extensions import Self


class Emitter(ABC):
    """A DataNode, the size of its samples, and the operators that led to it.

    Attributes:
        device: The device of the operators.
        spec: The spec of the data as the current step sees it.
        step: The key of the current step.
        emitted: The operators so far, in order.
        present: As in Primitives.
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
        self.present: NDArray[np.bool_] = np.ones(len(size), bool)

    # --- called by steps

    @property
    def size(self) -> Any:
        return self._size

    @property
    def width_height(self) -> Any:
        return self._size[..., ::-1]

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

    @property
    def _dtype(self) -> str:
        """The dtype of the current node, without the operations that are still deferred."""
        return self.spec.dtype

    @abstractmethod
    def _on_pixels(self, op: str, make: Callable[[Any], Any]) -> None:
        """Add an operator to the graph; `make` gets and returns a DataNode of layout HWC."""

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

    def _to_torch_dtype(self, dtype: str) -> Any:
        """Return the node, of `dtype`, in a dtype in which DALI hands it to torch."""
        if self._node is not None:
            self._node = numbers.for_torch(self._node, dtype)
        return self._node

    def _check_inside(self, anchor: Any, shape: Any) -> None:
        """Raise SampleIncompatibleError if a window leaves the image; skipped for DataNodes."""
        if self._node is not None:
            return
        outside = ((anchor < 0) | (anchor + shape > self._size)).any(-1) & self.present
        if outside.any():
            parts = (
                np.broadcast_to(v, (*outside.shape, v.shape[-1]))[outside]
                .reshape(-1, v.shape[-1])[0]
                .astype(int)
                .tolist()
                for v in (shape, anchor, self._size)
            )
            window, corner, room = parts
            if any(side > limit for side, limit in zip(window, room, strict=True)):
                raise SampleIncompatibleError(describe_small_image(room, window))
            by = "x".join(map(str, window)), "x".join(map(str, room))
            outside = f"the window of {by[0]} pixels at {corner} is not inside the image"
            raise SampleIncompatibleError(f"{outside}, which has {by[1]}")

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


def convert_argument(values: NDArray[Any]) -> NDArray[Any]:
    """Convert to the types of DALI's arguments: int32 or float32."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
