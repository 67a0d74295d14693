"""Rules: which kernel runs which operations that follow one another.

    pattern                                            kernel
    (FlipOp,)                                          cv2.flip
    (ResizeOp, Maybe(CropOp), Maybe(FlipOp),           kernels.resize, into the slot of the sample
     Maybe(ToDtypeOp), ..., DeliverOp)

The lists of rules in `compiled_kernels`, `opencv_kernels` and `kernels` say all that is fused. They
are tried in this order, and the first rule that matches decides. So a kernel takes over by a rule
before the others, with no change elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, NewType, TypeVar

from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.ops import Op
from gpupipe.engines.cpu.pixels import Array, Pixels

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
        op = self._by_kind[kind]
        assert isinstance(op, kind)
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
    """A list of rules, of which the first that matches decides."""

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
