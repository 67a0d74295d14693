"""What is traced of primitives: a row of each sample, the sizes after calls, and refusals."""

from typing import Any

import numpy as np
import pytest

from gpupipe.augment import color_ops
from gpupipe.augment.color_branches import ColorBranches
from gpupipe.engines.cpu import color_stages, ops
from gpupipe.engines.cpu.lowering import find_rules
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


def test_a_value_to_erase_with_can_be_hashed(tracer: Tracer) -> None:
    tracer.erase((0, 0), (1, 1), [1.0, 2.0, 3.0])  # type: ignore[arg-type]  # as steps may
    (op,) = tracer.ops
    assert isinstance(op, ops.EraseOp)
    assert op.value == (1.0, 2.0, 3.0)


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


def test_changes_of_colours_are_one_operation_beside_other_branches(tracer: Tracer) -> None:
    if color_stages.create_rules() == []:
        pytest.skip("without the extension, each change is a branch")
    names, other = ("", "invert", "", "posterize"), {2: lambda part: part.transpose()}
    tracer.switch(np.array([3, 2, 1]), ColorBranches(names, [np.full(3, 5.5)], other))
    (switch,) = tracer.ops
    assert isinstance(switch, SwitchOp)
    assert switch.index.tolist() == [1, 0, 1]
    (choice,) = switch.branches[1].ops
    assert isinstance(choice, ops.ChooseColorOp)
    assert choice.index.tolist() == [3, 2, 1]
    assert np.array_equal(choice.values, [np.full(3, 5.5)])


def test_changes_of_colours_of_some_samples_are_no_switch(tracer: Tracer) -> None:
    if color_stages.create_rules() == []:
        pytest.skip("without the extension, each change is a branch")

    def distort(part: Tracer) -> None:
        part.color("invert")
        part.switch(np.array([0, 1, 1]), [lambda part: None, lambda part: part.color("equalize")])

    tracer.switch(
        np.array([1, 1, 0]), [lambda part: part.color_matrix([color_ops.LUMA] * 3), distort]
    )
    rows = [op.rows.tolist() for op in tracer.ops if hasattr(op, "rows") and op.rows is not None]
    assert rows == [[False, False, True], [True, True, False], [False, True, False]]
    kinds = [ops.ColorMatrixOp, ops.ColorOp, ops.ColorOp]
    assert [type(op) for op in tracer.ops] == kinds
    tracer.switch(np.array([1, 1, 0]), [lambda part: part.color_matrix([[1.0]] * 3), distort])
    assert type(tracer.ops[-1]) is SwitchOp, "the number of channels changes"
