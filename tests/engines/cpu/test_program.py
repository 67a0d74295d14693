"""Calls in groups: the longest that a kernel takes, the preferred kernel first, and a cut."""

from __future__ import annotations

from typing import Any

import pytest

from gpupipe.engines.cpu.program import Call, Kernel, Program, Table
from gpupipe.pipeline.step import Spec

SPEC = Spec(encoded=False, channels=3, dtype="uint8")


def kernel(op: str, takes: Any = lambda calls: True, **options: Any) -> Kernel:
    """A kernel that adds its name and the calls that it runs to a list."""
    return Kernel(
        lambda pixels, calls, row: [*pixels, (op, "".join(c.primitive for c in calls), row)],
        op,
        takes,
        **options,
    )


def calls(names: str) -> list[Call]:
    return [Call(name, f"step {name}", SPEC) for name in names]


TABLE: Table = {
    ("a",): [kernel("one")],
    ("b",): [kernel("one")],
    ("c",): [kernel("slow", needs_torchvision=True)],
    ("a", "b"): [kernel("picky", lambda group: group[0].options == "few"), kernel("two")],
    ("a", "b", "c"): [kernel("three")],
}


def test_the_longest_group_runs_first() -> None:
    program = Program(calls("ababca"), TABLE)
    assert program.run([], 7) == [("two", "ab", 7), ("three", "abc", 7), ("one", "a", 7)]
    assert program.list_operators() == [
        ("two", "cpu", ("step a", "step b")),
        ("three", "cpu", ("step a", "step b", "step c")),
        ("one", "cpu", ("step a",)),
    ]


def test_the_first_kernel_that_takes_the_calls_runs_them() -> None:
    few = [Call("a", "x", SPEC, options="few"), Call("b", "x", SPEC)]
    assert Program(few, TABLE).list_operators() == [("picky", "cpu", ("x",))]


@pytest.mark.parametrize("cut", range(4))
def test_no_group_crosses_the_cut(cut: int) -> None:
    program = Program(calls("abc"), TABLE, cut)
    begun = program.run_beginning([], 0)
    assert "".join(group for _, group, _ in begun) == "abc"[:cut]
    ended = program.run_rest(begun, 0)
    assert "".join(group for _, group, _ in ended) == "abc"
    assert ended == program.run([], 0)
    assert program.prepare([], 0) is None, "nothing prepares it"


def test_a_primitive_that_no_kernel_runs_is_named() -> None:
    with pytest.raises(LookupError, match="no kernel runs the primitive z"):
        Program(calls("az"), TABLE)


def test_branches_are_looked_into() -> None:
    inside = Program(calls("c"), TABLE)
    table: Table = TABLE | {("switch",): [kernel("switch")]}
    program = Program([Call("switch", "choice", SPEC, branches=(inside,))], table)
    assert program.contains(["c"])
    assert not program.contains(["a", "b"])
    assert program.needs_torchvision()
    assert not Program(calls("ab"), TABLE).needs_torchvision()
    assert program.list_operators() == [("slow", "cpu", ("step c",))]
