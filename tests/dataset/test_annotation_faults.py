"""Faults of annotations: which boxes have them, and which samples they belong to."""

import numpy as np
import pytest

from gpupipe.dataset.annotation_faults import (
    NO_AREA,
    NOT_FINITE,
    OUTSIDE,
    FaultCollector,
    Faults,
    find_bad_boxes,
)

SIZE = (40, 60)  # height, width


@pytest.mark.parametrize(
    ("box", "kind"),
    [
        ([0, 0, 60, 40], ""),
        ([-5, -5, 1, 1], ""),
        ([59, 39, 70, 70], ""),
        ([60, 0, 70, 10], OUTSIDE),
        ([0, 40, 10, 50], OUTSIDE),
        ([-9, 0, 0, 10], OUTSIDE),
        ([0, -9, 10, 0], OUTSIDE),
        ([5, 5, 5, 10], NO_AREA),
        ([5, 10, 8, 5], NO_AREA),
        ([np.nan, 0, 1, 1], NOT_FINITE),
        ([0, 0, np.inf, 1], NOT_FINITE),
    ],
)
def test_kinds_of_bad_boxes(box: list[float], kind: str) -> None:
    boxes, sizes = np.array([box]), np.array([SIZE], np.int32)
    assert [k for k, numbers in find_bad_boxes(boxes, sizes) if len(numbers)] == [kind] * bool(kind)
    unknown = {name for name, numbers in find_bad_boxes(boxes, sizes * 0) if len(numbers)}
    without = {name for name, numbers in find_bad_boxes(boxes, None) if len(numbers)}
    assert unknown - {OUTSIDE} == without == {kind} - {"", OUTSIDE}


def test_the_first_fault_of_a_sample_is_kept_and_all_are_counted() -> None:
    faults = FaultCollector()
    faults.add("first", np.array([5, 2, 5]), lambda n: f"a{n}")
    faults.add("second", np.array([2, 7]), lambda n: f"b{n}")
    faults.add("none", np.array([], np.int64), lambda n: f"c{n}")
    faults.count("first", 4, lambda n: f"d{n}")
    joined = faults.join()
    assert joined.rows.tolist() == [2, 5, 7]
    assert [joined.explain(row) for row in range(9)] == ["", "", "a1", "", "", "a0", "", "b1", ""]
    assert faults.counts == {"first": (7, "a0"), "second": (2, "b0")}


def test_faults_follow_the_rows_that_are_taken() -> None:
    faults = FaultCollector()
    faults.add("kind", np.array([1, 4]), lambda n: f"fault {n}")
    taken = faults.join().take(np.array([4, 0, 3, 1]))
    assert [taken.explain(row) for row in range(4)] == ["fault 1", "", "", "fault 0"]
    assert len(Faults.none().take(np.array([1, 2]))) == 0
    assert Faults.none().explain(0) == ""


def test_rows_out_of_range_or_order_are_inconsistent() -> None:
    faults = FaultCollector()
    faults.add("kind", np.array([1, 4]), str)
    joined = faults.join()
    assert joined.is_consistent(5)
    assert not joined.is_consistent(4)
    assert not Faults(joined.rows[::-1], joined.reasons).is_consistent(5)
    assert not Faults(joined.rows[:1], joined.reasons).is_consistent(5)
