"""Parts of a DALI graph: operators that are not in a graph yet, and the values to feed to them.

Tracing the steps of a batch creates a Subgraph for each operator. `join`, `switch` and `blend`
combine Subgraphs to larger ones. A Subgraph serves in two ways:

- Once, `add_to` adds its operators to the graph, with a DataNode for each fed array.
- For every batch, the steps are traced again, and DALI is fed the `arrays` of the new Subgraph.

Examples:
    crop = Subgraph(ops.cut, (np.array([[0, 9], [3, 5]]), [224, 224], None))
    crop.arrays                         # the anchors of two samples
    crop.add_to(pixels, iter([anchor])) # ops.cut(pixels, anchor, [224, 224], None)

Invariant: all batches have the same operators, and arrays of the same dtypes in the same order. A
step must call the same primitives for every batch; see pipeline/primitives.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.data_node import DataNode

from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.ops import Argument, Floats

Array = NDArray[Any]
"""An argument with a row for each sample."""


@dataclass(frozen=True)
class DeferredArrays:
    """An argument that is an array for each sample; the arrays may differ in shape.

    Tracing does not make the arrays. So a graph can be built, and an example traced, without them.

    Attributes:
        dtype: The dtype of the arrays.
        ndim: The number of axes, of which the first counts the samples.
        make: Returns the arrays of a batch, one for each sample.
    """

    dtype: np.dtype[np.generic]
    ndim: int
    make: Callable[[], list[Array]]


Fed: TypeAlias = "Array | DeferredArrays"
"""An argument that is fed to the graph."""
Value: TypeAlias = "Argument | Fed"
Make = Callable[..., DataNode]
"""Adds operators to a graph: takes the pixels and the arguments, and returns the new pixels."""


class Emitted(NamedTuple):
    """Describes one DALI operator over pixels, with the fields of an engines.base.Operator.

    Attributes:
        op: The operator's name, such as "resize".
        device: "cpu", "gpu" or "mixed".
        steps: The keys of the pipeline's steps that the operator implements.
    """

    op: str
    device: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Subgraph:
    """Operators that turn the pixels of a batch into new pixels.

    Attributes:
        make: Called with the DataNode of the pixels, and with each argument. Returns the DataNode
            of the new pixels.
        arguments: The arguments of the operators. A NumPy array has a row for each sample, and is
            fed to the graph, as are DeferredArrays. Any other value is the same for all samples
            and batches.
        emitted: The operators to list in reports and profiles, in order.
    """

    make: Make
    arguments: tuple[Value, ...] = ()
    emitted: tuple[Emitted, ...] = ()

    @property
    def arrays(self) -> list[Fed]:
        """The arguments that are fed to the graph, in order."""
        return [a for a in self.arguments if _is_fed(a)]

    def subgraphs(self, device: str) -> "list[Subgraph]":
        """Return [self], so that a Subgraph can be used like the nodes of fusion.py."""
        return [self]

    def add_to(self, pixels: DataNode, nodes: Iterator[DataNode]) -> DataNode:
        """Add the operators to a graph.

        Args:
            pixels: The DataNode of the pixels.
            nodes: Yields the DataNodes of `arrays`, in order. The method takes as many as there are
                arrays, and leaves the others.

        Returns:
            The DataNode of the new pixels.
        """
        return self.make(pixels, *(next(nodes) if _is_fed(a) else a for a in self.arguments))


def operator(
    op: str, device: str, steps: tuple[str, ...], make: Make, *arguments: Value
) -> Subgraph:
    """Return a Subgraph of the one operator `op`, which its `emitted` lists."""
    return Subgraph(make, arguments, (Emitted(op, device, steps),))


def join(parts: Sequence[Subgraph]) -> Subgraph:
    """Return a Subgraph that runs the parts one after another."""

    def make(pixels: DataNode, *arguments: Argument) -> DataNode:
        for part, own in _share_out(parts, arguments):
            pixels = part.make(pixels, *own)
        return pixels

    return Subgraph(make, _arguments(parts), _emitted(parts))


def switch(index: Array, branches: Sequence[Subgraph], first: int = 0) -> Subgraph:
    """Return a Subgraph that sends each sample through one of the branches.

    Each split halves the remaining branches, so that a sample passes through few splits. A split
    or merge copies no pixels.

    Args:
        index: The branch of each sample, (B,).
        branches: The branches. An array among a branch's arguments has a row for every sample of
            the batch, also for the samples that go through other branches.
        first: The value of `index` that selects the first branch.
    """
    if len(branches) == 1:
        return branches[0]
    middle = len(branches) // 2
    halves = (
        switch(index, branches[:middle], first),
        switch(index, branches[middle:], first + middle),
    )

    def make(pixels: DataNode, is_low: DataNode, *arguments: Argument) -> DataNode:
        def take(value: Argument, side: int) -> Argument:
            return ops.split(value, is_low)[side] if isinstance(value, DataNode) else value

        low, high = ops.split(pixels, is_low)
        (first_half, of_first), (second_half, of_second) = _share_out(halves, arguments)
        low = first_half.make(low, *(take(argument, 0) for argument in of_first))
        high = second_half.make(high, *(take(argument, 1) for argument in of_second))
        return ops.merge(low, high, is_low)

    return Subgraph(make, (index < first + middle, *_arguments(halves)), _emitted(halves))


def blend(branches: Sequence[Subgraph], total: Subgraph) -> Subgraph:
    """Return a Subgraph that runs all branches on each sample, and `total` on their results.

    `total.make` gets the list of the results in place of pixels.
    """
    parts = (*branches, total)

    def make(pixels: DataNode, *arguments: Argument) -> DataNode:
        *shares, (_, of_total) = _share_out(parts, arguments)
        return total.make([part.make(pixels, *own) for part, own in shares], *of_total)

    return Subgraph(make, _arguments(parts), _emitted(parts))


def _is_fed(value: Value) -> TypeGuard[Fed]:
    return isinstance(value, np.ndarray | DeferredArrays)


def convert_argument(values: Array) -> Array:
    """Convert an argument to a dtype that DALI takes: floats to float32, all others to int32."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


def merge_sizes(before: Floats, parts: Sequence[tuple[NDArray[np.bool_], Floats]]) -> Floats:
    """Return the sizes after a switch: one size if all branches have the same, else one per sample.

    `before` holds the sizes before the switch. `parts` has two arrays for each branch: which
    samples go through the branch, bool (B,), and the sizes of the samples after the branch.
    """
    sizes = [size for _, size in parts]
    if all(size.ndim == 1 and np.array_equal(size, sizes[0]) for size in sizes):
        return sizes[0]
    merged = np.array(np.broadcast_to(before, (len(parts[0][0]), sizes[0].shape[-1])), np.float64)
    for present, size in parts:
        merged = np.where(present[:, None], size, merged)
    return merged


def _share_out(
    parts: Sequence[Subgraph], arguments: Sequence[Argument]
) -> Iterator[tuple[Subgraph, Sequence[Argument]]]:
    """Yield each part with its arguments. `arguments` has those of all parts, part by part."""
    start = 0
    for part in parts:
        end = start + len(part.arguments)
        yield part, arguments[start:end]
        start = end


def _arguments(parts: Sequence[Subgraph]) -> tuple[Value, ...]:
    return tuple(argument for part in parts for argument in part.arguments)


def _emitted(parts: Sequence[Subgraph]) -> tuple[Emitted, ...]:
    return tuple(emitted for part in parts for emitted in part.emitted)
