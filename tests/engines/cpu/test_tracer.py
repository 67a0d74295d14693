"""What is traced of primitives: a row of each sample, the sizes after calls, and refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.ops import as_tensor
from gpupipe.engines.cpu.program import Rules, SwitchOp
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import NoLoweringError, Spec


@pytest.fixture
def tracer() -> Tracer:
    """Three images of several sizes."""
    spec = Spec.of_image(3)
    return Tracer([(10, 20), (30, 40), (50, 60)], find_rules(), spec, "1 step")


def test_an_argument_of_all_samples_is_one_of_each(tracer: Tracer) -> None:
    tracer.crop((1, 2), np.array([[3, 4], [5, 6], [7, 8]]))
    (op,) = tracer.ops
    windows = [[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 7, 8]]
    assert isinstance(op, ops.CropOp)
    assert (op.step, op.spec, op.fill) == ("1 step", tracer.spec, None)
    assert op.windows.tolist() == windows
    assert op.primitive == "crop"


def test_sizes_follow_the_calls(tracer: Tracer) -> None:
    tracer.pad((1, 2), (3, 4), "edge")
    assert tracer.size.tolist() == [[14, 26], [34, 46], [54, 66]]
    assert tracer.width_height.tolist() == [[26, 14], [46, 34], [66, 54]]
    tracer.flip(horizontal=np.array([0, 1, 0]))
    flip = tracer.ops[-1]
    assert isinstance(flip, ops.FlipOp)
    assert flip.flags.tolist() == [[0, 0], [1, 0], [0, 0]]
    tracer.resize((8, 9), "bilinear", True)
    assert tracer.size.tolist() == [[8, 9]] * 3
    tracer.crop((0, 0), (2, 3))
    assert tracer.size.tolist() == [[2, 3]] * 3


def test_a_switch_has_the_sizes_of_the_branch_that_each_sample_takes(tracer: Tracer) -> None:
    present: list[Any] = []

    def shrink(part: Tracer) -> None:
        present.append(part.present.tolist())
        part.resize((8, 9), "bilinear", True)

    tracer.switch(np.array([0, 1, 0]), [shrink, lambda part: None])
    assert present == [[True, False, True]]
    assert tracer.size.tolist() == [[8, 9], [30, 40], [8, 9]]
    (switch,) = tracer.ops
    assert isinstance(switch, SwitchOp)
    assert switch.index.tolist() == [0, 1, 0]
    assert [[type(op) for op in branch.ops] for branch in switch.branches] == [[ops.ResizeOp], []]


def test_erasing_some_samples_is_no_switch(tracer: Tracer) -> None:
    """So that it can join the delivery."""
    erase = [lambda part: None, lambda part: part.erase((1, 2), (3, 4), (0.0,))]
    tracer.switch(np.array([0, 1, 0]), erase)
    (op,) = tracer.ops
    assert isinstance(op, ops.EraseOp)
    assert op.windows.tolist() == [[0] * 4, [1, 2, 3, 4], [0] * 4]


def test_a_fork_goes_on_from_the_samples_as_they_are(tracer: Tracer) -> None:
    tracer.crop((0, 0), (2, 3))
    fork = tracer.fork()
    assert (fork.ops, fork.spec, fork.step) == ([], tracer.spec, "1 step")
    fork.pad((1, 1), (1, 1), "edge")
    assert fork.size.tolist() == [[4, 5]] * 3
    assert tracer.size.tolist() == [[2, 3]] * 3


def test_what_no_kernel_runs_is_refused(tracer: Tracer) -> None:
    with pytest.raises(NoLoweringError, match="'sphere' is an operator of DALI alone"):
        tracer.apply("sphere", abs)
    with pytest.raises(NoLoweringError, match="no color function 'darken'"):
        tracer.color("darken")
    assert tracer.ops == []
    other = Tracer([(1, 2)], Rules([]), tracer.spec)
    other.color_matrix(np.eye(3))
    with pytest.raises(NoLoweringError, match="no kernel for this use of 'color_matrix'"):
        other.program().check()


def test_a_list_of_color_changes_that_switches_share_is_traced_once(tracer: Tracer) -> None:
    calls: list[str] = []

    def change(name: str, part: Tracer) -> None:
        calls.append(name)
        part.color(f"adjust_{name}", np.array([0.5, 1.5, 2.0]))

    branches = [partial(change, name) for name in ("brightness", "contrast")]
    for index in ([0, 1, 0], [1, 0, 1]):
        tracer.switch(np.array(index), branches)
    assert calls == ["brightness", "contrast"]
    first, second = (op for op in tracer.ops if isinstance(op, SwitchOp))
    assert (first.index.tolist(), second.index.tolist()) == ([0, 1, 0], [1, 0, 1])
    assert first.branches is second.branches
    tracer.begin_step("2 step", tracer.spec)
    tracer.switch(np.zeros(3, int), branches)
    assert calls == ["brightness", "contrast"] * 2, "the changes name another step"


def test_a_list_of_branches_that_change_sizes_is_traced_each_time(tracer: Tracer) -> None:
    def halve(part: Tracer) -> None:
        part.resize(part.size // 2, "bilinear", True)

    branches = [halve, lambda part: None]
    for _ in range(2):
        tracer.switch(np.array([0, 1, 0]), branches)
    assert tracer.size.tolist() == [[2, 5], [30, 40], [12, 15]]


def test_changes_of_colours_beside_other_branches_are_one_branch() -> None:
    spec, image = Spec.of_image(3), np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    changes = [("invert",), ("posterize", np.arange(1, 6))]
    branches: list[Any] = [
        lambda part: None,
        lambda part: part.color(*changes[0]),
        lambda part: part.transpose(),
        lambda part: part.color(*changes[1]),
        lambda part: part.crop((1, 2), (2, 3)),
    ]
    index = [3, 0, 4, 2, 1]
    tracer = Tracer([(4, 5)] * 5, find_rules(), spec)
    tracer.switch(np.array(index), branches)
    (switch,) = tracer.ops
    assert isinstance(switch, SwitchOp)
    assert switch.index.tolist() == [3, 0, 2, 1, 3]
    (inner,) = switch.branches[3].ops
    assert isinstance(inner, SwitchOp)
    assert [inner.index[0], inner.index[4]] == [1, 0]
    program = tracer.program()
    for row, branch in enumerate(index):
        alone = Tracer([(4, 5)] * 5, find_rules(), spec)
        branches[branch](alone)
        found, expected = program.run(image, row), alone.program().run(image, row)
        assert torch.equal(as_tensor(found), as_tensor(expected)), branch
