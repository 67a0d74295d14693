"""Programs: the operations on one field or view, grouped by rules for the kernels that run them.

    pattern of a rule                                  kernel
    (FlipOp,)                                          cv2.flip
    (ResizeOp, Maybe(CropOp), Maybe(FlipOp),           kernels.resize, into the slot of the sample
     Maybe(ToDtypeOp), ..., DeliverOp)

The lists of rules in `compiled_kernels`, `opencv_kernels` and `kernels` define which operations are
fused. `Rules` tries them in this order, and takes the first rule that matches. So to replace a
kernel, add a rule before its rule.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NewType, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.base import Operator
from gpupipe.engines.cpu.ops import Op
from gpupipe.engines.cpu.patterns import Match, Maybe, Pattern, Series, find_kind, match_pattern
from gpupipe.engines.cpu.pixels import Pixels
from gpupipe.pipeline.step import NoLoweringError
from gpupipe.runtime import tracing

Content = EncodedImage | Pixels
"""The input of a program: an image file that is not decoded yet, or pixels."""
Stage = NewType("Stage", object)
"""One or more operations on all samples of a batch, run by the extension: see native/stage.h."""
Run = Callable[[Content, int], Pixels]
"""Called with the content of a sample and its row in the batch. Returns the new pixels."""
_Op = TypeVar("_Op", bound=Op)
_Pixels = TypeVar("_Pixels")


@dataclass(frozen=True)
class Kernel:
    """A function that runs one or more successive operations on one sample.

    Attributes:
        name: The name in profiles and reports.
        run: Runs the operations. After a delivery, ignore the pixels that it returns.
        stage: Called once a batch. Returns the stage that has the effect of `run` on each of its
            samples, or None if this batch has none. It is None for kernels without stages.
        needs_torchvision: Whether `run` may call torchvision.
    """

    name: str
    run: Run
    stage: Callable[[], Stage | None] | None = None
    needs_torchvision: bool = False


@dataclass(frozen=True)
class Rule:
    """Assigns a kernel to successive operations of certain types.

    Attributes:
        pattern: The types of the operations.
        bind: Returns the kernel for a match; None if the kernel cannot run these operations.
    """

    pattern: Pattern
    bind: Callable[[Match], Kernel | None]


class Rules:
    """Chooses kernels for operations: the first rule that matches and returns a kernel decides."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._by_first: dict[type[Op], list[Rule]] = {}
        for rule in rules:
            for part in rule.pattern:
                kinds = part.kinds if isinstance(part, Series) else (find_kind(part),)
                for kind in kinds:
                    self._by_first.setdefault(kind, []).append(rule)
                if not isinstance(part, Maybe):
                    break
        self._matching: dict[tuple[type[Op], ...], list[tuple[Rule, int]]] = {}
        """The result of `_list_matching` for each series of operations so far."""

    def find(self, ops: Sequence[Op]) -> tuple[Kernel, Sequence[Op]] | None:
        """Return the kernel that runs the first of `ops`, and the operations that it runs.

        `ops` must not be empty. Return None if no rule has a kernel for the first of them.
        """
        kinds = tuple(map(type, ops))
        if kinds not in self._matching:
            self._matching[kinds] = self._list_matching(ops)
        for rule, count in self._matching[kinds]:
            match = Match(ops[:count]) if count else match_pattern(rule.pattern, ops)
            kernel = None if match is None else rule.bind(match)
            if match is not None and kernel is not None:
                return kernel, match.ops
        return None

    def _list_matching(self, ops: Sequence[Op]) -> list[tuple[Rule, int]]:
        """Return the rules that match operations of these types, and how many each matches.

        The number is 0 where it depends on more than the types.
        """
        matching = []
        for rule in self._by_first.get(type(ops[0]), ()):
            if any(isinstance(part, Series) for part in rule.pattern):
                matching.append((rule, 0))
            elif match := match_pattern(rule.pattern, ops):
                matching.append((rule, len(match.ops)))
        return matching


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
        can_run: Returns whether the kernel can run an operation. By default it can run all.
        needs_torchvision: Whether `run` may call torchvision.
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
    """Runs operations on one field or view, in order, with the kernels that rules choose.

    Args:
        ops: The operations.
        rules: The rules that choose the kernels.
        cut: How many operations form the prefix, whose result the decoded cache keeps. No kernel
            runs operations of both the prefix and the rest.

    Attributes:
        ops: The operations.
    """

    def __init__(self, ops: Sequence[Op], rules: Rules, cut: int = 0) -> None:
        self.ops = ops
        self._rules, self._cut = rules, cut

    @cached_property
    def prefix(self) -> list[Group]:
        """The kernels of the prefix, each with its operations. Raises as `check` does."""
        return list(_group(self.ops[: self._cut], self._rules))

    @cached_property
    def rest(self) -> list[Group]:
        """The kernels after the prefix, each with its operations. Raises as `check` does."""
        return list(_group(self.ops[self._cut :], self._rules))

    @property
    def groups(self) -> list[Group]:
        """All kernels, each with its operations. Raises as `check` does."""
        return [*self.prefix, *self.rest]

    def check(self) -> None:
        """Raise NoLoweringError if no rule matches one of the operations, also of the branches."""
        for _ in self._iter_groups():
            pass

    def run(self, content: Content, row: int) -> Pixels:
        """Run all operations on the sample in row `row` of the batch.

        Returns:
            The new pixels. If the program ends with a delivery, ignore them.
        """
        return run_groups(self.groups, content, row)

    def needs_torchvision(self) -> bool:
        """Return whether a kernel of the program or of its branches may call torchvision."""
        return any(kernel.needs_torchvision for kernel, _ in self._iter_groups())

    def list_operators(self) -> list[Operator]:
        """Return the name, the device and the step keys of each kernel.

        In place of a switch or blend, the list has the kernels of its branches. A kernel that runs
        other operations, too, stands before them.
        """
        return [
            (kernel.name, "cpu", _list_steps(ops))
            for kernel, ops in self._iter_groups()
            if not all(isinstance(op, BranchingOp) for op in ops)
        ]

    def _iter_groups(self) -> Iterator[Group]:
        """Yield each group, followed by the groups of its branches."""
        for kernel, ops in self.groups:
            yield kernel, ops
            for op in ops:
                for branch in op.branches if isinstance(op, BranchingOp) else ():
                    yield from branch._iter_groups()


@dataclass(frozen=True)
class ViewProgram:
    """The program of one view, or of several views whose steps are equal.

    Attributes:
        program: Has `num_views` rows for each sample: row n * B + r is view n of sample r.
        num_views: How many views it makes.
        num_samples: How many samples the batch has, B.
    """

    program: Program
    num_views: int
    num_samples: int

    def run(self, pixels: Pixels, row: int) -> None:
        """Run the program on the sample in row `row` of the batch, once for each view."""
        for n in range(self.num_views):
            self.program.run(pixels, n * self.num_samples + row)


@dataclass(frozen=True)
class FieldProgram:
    """The program of a field, and those of the views that are made of its result."""

    program: Program
    views: Sequence[ViewProgram] = ()

    @property
    def programs(self) -> list[Program]:
        """The program of the field, and after it those of the views."""
        return [self.program, *(view.program for view in self.views)]


@dataclass(frozen=True)
class BranchingOp(Op):
    branches: Sequence[Program]


@dataclass(frozen=True)
class SwitchOp(BranchingOp):
    """Runs one branch for each sample: the sample in `row` takes `branches[index[row]]`."""

    index: NDArray[np.int64]


@dataclass(frozen=True)
class BlendOp(BranchingOp):
    """Sums the results of all branches, each times its weight in `weights[row]`."""

    weights: NDArray[np.float64]


def _group(ops: Sequence[Op], rules: Rules) -> Iterator[Group]:
    while ops:
        group = rules.find(ops)
        if group is None:
            primitive = ops[0].primitive
            raise NoLoweringError(f"the CPU engine has no kernel for this use of '{primitive}'")
        yield group
        ops = ops[len(group[1]) :]


def run_groups(groups: Iterable[Group], content: Content, row: int) -> Pixels:
    """Run kernels one after the other. If a trace is recorded, record the time of each.

    If `content` is an image file, the first kernel decodes it.
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
    return tuple(dict.fromkeys(step for op in ops for step in op.steps if step))
