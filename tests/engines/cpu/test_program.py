"""Operations in groups: the first rule that matches decides, and no group crosses a cut."""

from typing import Any

import numpy as np
import pytest

from gpupipe.engines.cpu.ops import CropOp, EraseOp, FlipOp, NormalizeOp, Op
from gpupipe.engines.cpu.patterns import Match, Pattern
from gpupipe.engines.cpu.pixels import Pixels, as_array
from gpupipe.engines.cpu.program import Kernel, Program, Rule, Rules, SwitchOp, run_groups, single
from gpupipe.pipeline.step import NoLoweringError, Spec

SPEC = Spec.of_image(3)
NO_ROWS = np.zeros((0, 4), np.int64)


def rule(name: str, pattern: Pattern, can_run: Any = lambda match: True, **options: Any) -> Rule:
    """The rule of a kernel that adds its name and the operations that it runs to a list."""

    def bind(match: Match) -> Kernel | None:
        def run(content: Any, row: int) -> Any:
            return [*content, (name, "".join(op.step[-1] for op in match.ops), row)]

        return Kernel(name, run, **options) if can_run(match) else None

    return Rule(pattern, bind)


def ops(names: str, fill: Any = None) -> list[Op]:
    made = {
        "a": CropOp("step a", SPEC, NO_ROWS, fill),
        "b": FlipOp("step b", SPEC, NO_ROWS),
        "c": EraseOp("step c", SPEC, NO_ROWS, ()),
        "z": NormalizeOp("step z", SPEC, (), ()),
    }
    return [made[name] for name in names]


RULES = Rules(
    [
        rule("three", (CropOp, FlipOp, EraseOp)),
        rule("picky", (CropOp, FlipOp), lambda match: match[CropOp].fill == (1.0,)),
        rule("two", (CropOp, FlipOp)),
        rule("one", (CropOp,)),
        rule("one", (FlipOp,)),
        rule("slow", (EraseOp,), needs_torchvision=True),
    ]
)


def run(program: Program, row: int = 0) -> Any:
    nothing: Any = []
    return program.run(nothing, row)


def test_the_rules_decide_what_runs_together() -> None:
    program = Program(ops("ababca"), RULES)
    assert run(program, 7) == [("two", "ab", 7), ("three", "abc", 7), ("one", "a", 7)]
    assert program.list_operators() == [
        ("two", "cpu", ("step a", "step b")),
        ("three", "cpu", ("step a", "step b", "step c")),
        ("one", "cpu", ("step a",)),
    ]


def test_the_first_rule_whose_kernel_runs_the_operations_decides() -> None:
    program = Program(ops("ab", fill=(1.0,)), RULES)
    assert program.list_operators() == [("picky", "cpu", ("step a", "step b"))]


@pytest.mark.parametrize("cut", range(4))
def test_no_group_crosses_the_cut(cut: int) -> None:
    program = Program(ops("abc"), RULES, cut)
    nothing: Any = []
    begun: Any = run_groups(program.prefix, nothing, 0)
    assert "".join(group for _, group, _ in begun) == "abc"[:cut]
    ended: Any = run_groups(program.rest, begun, 0)
    assert "".join(group for _, group, _ in ended) == "abc"
    assert ended == run(program)


def test_a_primitive_that_no_kernel_runs_is_named() -> None:
    program = Program(ops("az"), RULES)
    with pytest.raises(NoLoweringError, match="no kernel for this use of 'normalize'"):
        program.check()


def test_branches_are_looked_into() -> None:
    inside = Program(ops("c"), RULES)
    rules = Rules([rule("switch", (SwitchOp,))])
    program = Program([SwitchOp("choice", SPEC, (inside,), np.array([0]))], rules)
    assert program.needs_torchvision()
    assert not Program(ops("ab"), RULES).needs_torchvision()
    assert program.list_operators() == [("slow", "cpu", ("step c",))]


CROP = CropOp("", SPEC, NO_ROWS, None)
FLIP = FlipOp("", SPEC, np.array([[0, 0], [1, 0]]))


def flip(op: FlipOp, pixels: Pixels, row: int) -> Pixels:
    return as_array(pixels)[:, :: 1 - 2 * op.flags[row][0]]


def test_a_kernel_is_bound_to_its_operation() -> None:
    """The first of two that can run it."""
    rules = Rules(
        [
            single(FlipOp, "few", flip, lambda op: len(op.flags) < 2),
            single(FlipOp, "many", flip, needs_torchvision=True),
        ]
    )
    found = rules.find([FLIP, CROP])
    assert found is not None
    kernel, ops = found
    assert (kernel.name, kernel.needs_torchvision, list(ops)) == ("many", True, [FLIP])
    image = np.arange(12).reshape(2, 2, 3)
    assert kernel.run(image, 0) is not image
    assert np.array_equal(as_array(kernel.run(image, 0)), image)
    assert np.array_equal(as_array(kernel.run(image, 1)), image[:, ::-1])
    assert rules.find([CROP]) is None
