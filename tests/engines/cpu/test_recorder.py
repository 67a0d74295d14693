"""What is recorded of primitives: a row of each sample, the sizes after calls, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpupipe.engines.cpu.opencv_kernels import create_table
from gpupipe.engines.cpu.recorder import Recorder
from gpupipe.pipeline.step import NoLowering, Spec


@pytest.fixture
def recorder() -> Recorder:
    """Three images of several sizes."""
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    made = Recorder([(10, 20), (30, 40), (50, 60)], create_table())
    made.spec, made.step = Spec(encoded=False, channels=3, dtype="uint8"), "1 step"
    return made


def test_an_argument_of_all_samples_is_one_of_each(recorder: Recorder) -> None:
    recorder.crop((1, 2), np.array([[3, 4], [5, 6], [7, 8]]))
    (call,) = recorder.calls
    assert (call.primitive, call.step, call.options) == ("crop", "1 step", None)
    assert call.rows == [[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 7, 8]]


def test_sizes_follow_the_calls(recorder: Recorder) -> None:
    recorder.pad((1, 2), (3, 4), "edge")
    assert recorder.size.tolist() == [[14, 26], [34, 46], [54, 66]]
    assert recorder.width_height.tolist() == [[26, 14], [46, 34], [66, 54]]
    recorder.flip(horizontal=np.array([0, 1, 0]))
    assert recorder.calls[-1].rows == [[0, 0], [1, 0], [0, 0]]
    recorder.resize((8, 9), "bilinear", True)
    assert recorder.size.tolist() == [[8, 9]] * 3
    recorder.crop((0, 0), (2, 3))
    assert recorder.size.tolist() == [[2, 3]] * 3


def test_a_switch_has_the_sizes_of_the_branch_that_each_sample_takes(recorder: Recorder) -> None:
    present: list[Any] = []

    def shrink(part: Recorder) -> None:
        present.append(part.present.tolist())
        part.resize((8, 9), "bilinear", True)

    recorder.switch(np.array([0, 1, 0]), [shrink, lambda part: None])
    assert present == [[True, False, True]]
    assert recorder.size.tolist() == [[8, 9], [30, 40], [8, 9]]
    (call,) = recorder.calls
    assert (call.primitive, call.rows) == ("switch", [0, 1, 0])
    assert [[c.primitive for c in branch.calls] for branch in call.branches] == [["resize"], []]


def test_erasing_some_samples_is_no_switch(recorder: Recorder) -> None:
    """So that it can join the delivery."""
    erase = [lambda part: None, lambda part: part.erase((1, 2), (3, 4), (0.0,))]
    recorder.switch(np.array([0, 1, 0]), erase)
    (call,) = recorder.calls
    assert (call.primitive, call.rows) == ("erase", [[0] * 4, [1, 2, 3, 4], [0] * 4])


def test_a_fork_goes_on_from_the_samples_as_they_are(recorder: Recorder) -> None:
    recorder.crop((0, 0), (2, 3))
    fork = recorder.fork()
    assert (fork.calls, fork.spec, fork.step) == ([], recorder.spec, "1 step")
    fork.pad((1, 1), (1, 1), "edge")
    assert fork.size.tolist() == [[4, 5]] * 3
    assert recorder.size.tolist() == [[2, 3]] * 3


def test_what_no_kernel_runs_is_refused(recorder: Recorder) -> None:
    with pytest.raises(NoLowering, match="'sphere' is an operator of DALI alone"):
        recorder.apply("sphere", abs)
    with pytest.raises(NoLowering, match="no color function 'darken'"):
        recorder.color("darken")
    assert recorder.calls == []
