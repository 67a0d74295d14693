"""Programs: the operations on one field or view, grouped by rules for the kernels that run them.

    pattern of a rule                                  kernel
    (FlipOp,)                                          cv2.flip
    (ResizeOp, Maybe(CropOp), Maybe(FlipOp),           kernels.resize, into the slot of the sample
     Maybe(ToDtypeOp), ..., DeliverOp)

The lists of rules in `compiled_kernels`, `opencv_kernels` and `kernels` say all that is fused. They
are tried in this order, and the first rule that matches decides. So a kernel takes over by a rule
before the others, with no change elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, NewType, TypeVar, cast

from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.base import Operator
from gpupipe.engines.cpu.ops import Op
from gpupipe.engines.cpu.pixels import Array, Pixels
from gpupipe.runtime import tracing

Content = EncodedImage | Pixels
"""What a program begins with."""
Task = NewType("Task", object)
"""Work that `gpupipe._kernels.run` does later, without the GIL."""
Run = Callable[[Content, int], Pixels]
"""Takes the pixels of a sample and its row in the batch, and returns the new pixels."""
Prepare = Callable[[Array, int, Task | None], Task | None]
"""Prepares what `Run` does, for operations that end with a delivery. Takes uint8 (H, W, 3) whose
rows have no gaps, the row of the sample, and the task that makes the pixels before, or None.
Returns None if the sample cannot be prepared.
"""
_Op = TypeVar("_Op", bound=Op)
_Pixels = TypeVar("_Pixels")


@dataclass(frozen=True)
class Kernel:
    """A function that runs the operations of a match on one sample.

    Attributes:
        name: For profiles and reports.
        run: Runs them. After a delivery its result has no meaning.
        prepare: Prepares them; None if it cannot.
        finish: Ends operations that were prepared, after their task was done.
        needs_torchvision: Whether `run` calls torchvision, for most operations.
    """

    name: str
    run: Run
    prepare: Prepare | None = None
    finish: Callable[[int], None] | None = None
    needs_torchvision: bool = False


class Maybe(NamedTuple):
    """An operation that may be missing where a pattern has it."""

    kind: type[Op]


Pattern = tuple[type[Op] | Maybe, ...]
"""Types of operations, each at most once."""


class Match:
    """The operations that match a pattern, by their types."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self._by_kind = {type(op): op for op in ops}

    def get(self, kind: type[_Op]) -> _Op | None:
        """Return the operation of a type; None if there is none."""
        op = self._by_kind.get(kind)
        return op if isinstance(op, kind) else None

    def __getitem__(self, kind: type[_Op]) -> _Op:
        op = self.get(kind)
        assert op is not None
        return op


def match_pattern(pattern: Pattern, ops: Sequence[Op]) -> Match | None:
    """Return the first of `ops`, as many as a pattern matches; None if it does not."""
    count = 0
    for part in pattern:
        kind = part.kind if isinstance(part, Maybe) else part
        if count < len(ops) and type(ops[count]) is kind:
            count += 1
        elif kind is part:
            return None
    return Match(ops[:count])


@dataclass(frozen=True)
class Rule:
    """Operations that follow one another, and the kernel that runs them.

    Attributes:
        pattern: The types of the operations.
        bind: Returns the kernel for a match; None if it cannot run these operations.
    """

    pattern: Pattern
    bind: Callable[[Match], Kernel | None]


class Rules:
    """Chooses the kernel for a sequence of operations: the first rule that matches and binds."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._by_first: dict[type[Op], list[Rule]] = {}
        for rule in rules:
            for part in rule.pattern:
                kind = part.kind if isinstance(part, Maybe) else part
                self._by_first.setdefault(kind, []).append(rule)
                if kind is part:
                    break

    def find(self, ops: Sequence[Op]) -> tuple[Kernel, Sequence[Op]] | None:
        """Return the kernel for the first operations, and those that it runs; None: there is none.

        Args:
            ops: One operation or more.
        """
        for rule in self._by_first.get(type(ops[0]), ()):
            match = match_pattern(rule.pattern, ops)
            kernel = None if match is None else rule.bind(match)
            if match is not None and kernel is not None:
                return kernel, match.ops
        return None


def single(
    kind: type[_Op],
    name: str,
    run: Callable[[_Op, _Pixels, int], Pixels],
    can_run: Callable[[_Op], bool] | None = None,
    *,
    needs_torchvision: bool = False,
) -> Rule:
    """Return the rule of a kernel that runs one operation.

    Args:
        kind: The type of the operation.
        name: The name of the kernel.
        run: Takes the operation, the pixels of a sample, and its row; returns the new pixels.
        can_run: Whether the kernel can run an operation; None: it can run all of them.
        needs_torchvision: Whether `run` calls torchvision.
    """

    def bind(match: Match) -> Kernel | None:
        op = match[kind]
        if can_run is not None and not can_run(op):
            return None
        return Kernel(name, partial(run, op), needs_torchvision=needs_torchvision)

    return Rule((kind,), bind)


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
        return any(isinstance(op, kinds) for _, ops in self._iter_groups() for op in ops)

    def needs_torchvision(self) -> bool:
        """Return whether a kernel calls torchvision, here or in a branch."""
        return any(kernel.needs_torchvision for kernel, _ in self._iter_groups())

    def list_operators(self) -> list[Operator]:
        """Return the kernels, the device, and the keys of the steps that each implements."""
        return [
            (kernel.name, "cpu", _list_steps(ops))
            for kernel, ops in self._iter_groups()
            if not any(isinstance(op, BranchingOp) for op in ops)
        ]

    def _iter_groups(self) -> Iterator[Group]:
        """Yield the groups, each with those of its branches after it."""
        for kernel, ops in self.groups:
            yield kernel, ops
            for op in ops:
                for branch in op.branches if isinstance(op, BranchingOp) else ():
                    yield from branch._iter_groups()


@dataclass(frozen=True)
class BranchingOp(Op):
    branches: Sequence[Program]


@dataclass(frozen=True)
class SwitchOp(BranchingOp):
    """`index` is the branch of each sample."""

    index: Sequence[int]


@dataclass(frozen=True)
class BlendOp(BranchingOp):
    """`weights` are the factors of the branches, for each sample."""

    weights: Sequence[Sequence[float]]


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


def _list_steps(ops: Iterable[Op]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op.step for op in ops if op.step))
