"""The operations on one field or view, in groups that kernels run sample by sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from gpupipe.engines.base import Operator
from gpupipe.engines.cpu.ops import BranchingOp, Op
from gpupipe.engines.cpu.pixels import Pixels
from gpupipe.engines.cpu.rules import Content, Kernel, Rules
from gpupipe.runtime import tracing

Group = tuple[Kernel, Sequence[Op]]
"""A kernel, and the operations that it runs."""


class Program:
    """Operations on one field or view, in order.

    Args:
        ops: The operations.
        rules: Say which kernel runs which of them.
        cut: No group crosses this number of operations: `run_prefix` runs those before it.

    Attributes:
        ops: The operations.
        rest: The groups after the cut.

    Raises:
        LookupError: No rule matches one of the operations.
    """

    def __init__(self, ops: Sequence[Op], rules: Rules, cut: int = 0) -> None:
        self.ops = ops
        self._prefix = list(_group(ops[:cut], rules))
        self.rest = list(_group(ops[cut:], rules))
        self.groups = [*self._prefix, *self.rest]

    def run(self, content: Content, row: int) -> Pixels:
        """Run all operations on the sample in row `row` of the batch.

        Returns:
            The new pixels; of no meaning after a delivery.
        """
        return _run_groups(self.groups, content, row)

    def run_prefix(self, content: Content, row: int) -> Pixels:
        """Run the operations before the cut."""
        return _run_groups(self._prefix, content, row)

    def run_rest(self, content: Content, row: int) -> Pixels:
        """Run the operations after the cut, on the result of those before it."""
        return _run_groups(self.rest, content, row)

    def contains(self, kinds: tuple[type[Op], ...]) -> bool:
        """Return whether there is an operation of one of these types, here or in a branch."""
        return any(isinstance(op, kinds) for op in self.ops) or any(
            branch.contains(kinds) for branch in _iter_branches(self.ops)
        )

    def needs_torchvision(self) -> bool:
        """Return whether a kernel calls torchvision, here or in a branch."""
        return any(kernel.needs_torchvision for kernel, _ in self.groups) or any(
            branch.needs_torchvision() for branch in _iter_branches(self.ops)
        )

    def list_operators(self) -> list[Operator]:
        """Return the kernels, the device, and the keys of the steps that each implements."""
        operators: list[Operator] = []
        for kernel, ops in self.groups:
            if branches := list(_iter_branches(ops)):
                operators += [operator for part in branches for operator in part.list_operators()]
            else:
                operators.append((kernel.name, "cpu", _list_steps(ops)))
        return operators


def _group(ops: Sequence[Op], rules: Rules) -> Iterator[Group]:
    while ops:
        group = rules.find(ops)
        if group is None:
            raise LookupError(f"no kernel runs the primitive {ops[0].primitive}")
        yield group
        ops = ops[len(group[1]) :]


def _run_groups(groups: Iterable[Group], content: Content, row: int) -> Pixels:
    """Run kernels one after the other, and record what each takes if there is a recorder.

    The first operation on an image file decodes it.
    """
    if not tracing.is_recording():
        for kernel, _ in groups:
            content = kernel.run(content, row)
        return cast(Pixels, content)
    for kernel, ops in groups:
        steps = ", ".join(_list_steps(ops))
        with tracing.span(kernel.name, "operator", steps=steps, row=row):
            content = kernel.run(content, row)
    return cast(Pixels, content)


def _iter_branches(ops: Iterable[Op]) -> Iterator[Program]:
    return (branch for op in ops if isinstance(op, BranchingOp) for branch in op.branches)


def _list_steps(ops: Iterable[Op]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op.step for op in ops if op.step))
