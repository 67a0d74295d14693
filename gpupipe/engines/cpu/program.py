"""What the primitives of a batch are recorded as: calls, which kernels run sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.pipeline.step import Spec
from gpupipe.runtime import tracing


@dataclass(frozen=True)
class Call:
    """One call of a primitive, for all samples of a batch.

    Attributes:
        primitive: Its name, as in `Primitives`; "torch" for a step that runs in torch, or
            "deliver" for the writing of a sample to its place in the batch.
        step: The key of the step.
        spec: Shape, dtype and layout of the samples before the call.
        options: The arguments that all samples share.
        rows: The arguments of each sample.
        branches: The programs of `switch` and `blend`.
    """

    primitive: str
    step: str
    spec: Spec
    options: Any = ()
    rows: Sequence[Any] = ()
    branches: tuple[Program, ...] = ()


Calls = Sequence[Call]
Run = Callable[[Any, Calls, int], Any]
"""Runs a group of calls on one sample: takes the pixels, the calls and the sample's position in the
batch, and returns the new pixels. Pixels are a NumPy array (H, W, C), or a tensor (C, H, W).
"""


Prepare = Callable[[NDArray[np.uint8], Calls, int, Any], Any]
"""Prepares what `Run` does, for calls that end with a delivery. Takes pixels whose rows have no
gaps, the calls, the row, and work that makes the pixels before, or None. Returns the work for
`gpupipe._kernels.run`, or None if the sample cannot be prepared.
"""
Finish = Callable[[Calls, int], None]
"""Ends what was prepared, after it has run."""


@dataclass(frozen=True)
class Kernel:
    """A function that runs a group of neighbouring calls on one sample.

    Attributes:
        run: Runs them.
        takes: Whether it can run these calls, judged by their options and the spec.
        op: Its name, for profiles and reports.
        prepare: Prepares them; None if it cannot.
        finish: Ends calls that were prepared, if anything is left to do.
        needs_torchvision: Whether it calls torchvision, for most calls.
    """

    run: Run
    op: str
    takes: Callable[[Calls], bool] = field(default=lambda calls: True)
    prepare: Prepare | None = None
    finish: Finish | None = None
    needs_torchvision: bool = False


Groups = Sequence[tuple[Kernel, Calls]]
"""Kernels, each with the calls that it runs."""


class Preparation(Protocol):
    """Prepares calls of a program as one piece of work."""

    def prepare(self, pixels: Any, row: int) -> Any:
        """Return the work of a sample for `gpupipe._kernels.run`, or None."""

    def finish(self, row: int) -> None:
        """End the calls on a sample, after its work was done."""


Table = dict[tuple[str, ...], list[Kernel]]
"""The kernels of each group of primitives, the preferred one first."""


class Program:
    """The calls of one field or view, in groups that a kernel runs.

    Args:
        calls: The calls, in order.
        table: The kernels.
        cut: No group crosses this number of calls: `run_beginning` runs those before it.

    Attributes:
        preparation: What prepares the calls after the cut for most samples; None: nothing does.
    """

    def __init__(self, calls: Sequence[Call], table: Table, cut: int = 0) -> None:
        self.calls = list(calls)
        self._longest = max(map(len, table))
        self._beginning = list(self._group(table, 0, cut))
        self.rest = list(self._group(table, cut, len(self.calls)))
        self.groups = [*self._beginning, *self.rest]
        self.preparation: Preparation | None = None

    def _group(self, table: Table, first: int, end: int) -> Any:
        """Yield (kernel, calls): the longest group that a kernel takes, then what follows it."""
        while first < end:
            kernel, calls = self._find(first, end, table)
            yield kernel, calls
            first += len(calls)

    def _find(self, first: int, end: int, table: Table) -> tuple[Kernel, list[Call]]:
        for length in range(min(self._longest, end - first), 0, -1):
            calls = self.calls[first : first + length]
            for kernel in table.get(tuple(c.primitive for c in calls), ()):
                if kernel.takes(calls):
                    return kernel, calls
        raise LookupError(f"no kernel runs the primitive {self.calls[first].primitive}")

    def run(self, pixels: Any, row: int) -> Any:
        """Run all calls on the pixels of the sample in row `row` of the batch.

        Returns:
            The new pixels; of no meaning after a delivery.
        """
        return _run_groups(self.groups, pixels, row)

    def prepare(self, pixels: Any, row: int) -> Any:
        """Return the work of all calls after the cut on a sample; None if it must be run.

        While operators are recorded there is none, so that each has its own time.
        """
        if self.preparation is None or tracing.is_recording():
            return None
        return self.preparation.prepare(pixels, row)

    def finish(self, row: int) -> None:
        """End the calls on a sample, after its work was done."""
        assert self.preparation is not None
        self.preparation.finish(row)

    def run_beginning(self, pixels: Any, row: int) -> Any:
        """Run the calls before the cut."""
        return _run_groups(self._beginning, pixels, row)

    def run_rest(self, pixels: Any, row: int) -> Any:
        """Run the calls after the cut, on the result of those before it."""
        return _run_groups(self.rest, pixels, row)

    def contains(self, primitives: Collection[str]) -> bool:
        """Return whether one of these primitives is called, here or in a branch."""
        return any(
            call.primitive in primitives or any(b.contains(primitives) for b in call.branches)
            for call in self.calls
        )

    def needs_torchvision(self) -> bool:
        """Return whether a kernel calls torchvision, here or in a branch."""
        branches = (branch for call in self.calls for branch in call.branches)
        return any(kernel.needs_torchvision for kernel, _ in self.groups) or any(
            branch.needs_torchvision() for branch in branches
        )

    def list_operators(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return the kernels, the device, and the keys of the steps that each implements."""
        operators = []
        for kernel, calls in self.groups:
            if parts := [part for call in calls for part in call.branches]:
                operators += [operator for part in parts for operator in part.list_operators()]
                continue
            steps = dict.fromkeys(call.step for call in calls if call.step)
            operators.append((kernel.op, "cpu", tuple(steps)))
        return operators


def _run_groups(groups: Groups, pixels: Any, row: int) -> Any:
    """Run kernels one after the other, and record what each takes if there is a recorder."""
    if not tracing.is_recording():
        for kernel, calls in groups:
            pixels = kernel.run(pixels, calls, row)
        return pixels
    for kernel, calls in groups:
        steps = ", ".join(dict.fromkeys(call.step for call in calls if call.step))
        with tracing.span(kernel.op, "operator", steps=steps, row=row):
            pixels = kernel.run(pixels, calls, row)
    return pixels
