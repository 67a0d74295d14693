"""Columns of boxes from a list in any order: they are grouped by sample, and checked."""

import numpy as np
import pytest

from gpupipe.dataset.annotation_building import BoxList
from gpupipe.dataset.annotation_faults import NO_AREA, OUTSIDE, FaultCollector

ROWS = np.array([2, 0, 2, 1, 0])
BOXES = np.array([[0, 0, 9, 9], [1, 1, 2, 2], [3, 3, 3, 4], [70, 0, 80, 9], [4, 4, 5, 5]], float)
SIZES = np.full((3, 2), 50, np.int32)


def boxes(is_used: list[bool] | None = None) -> BoxList:
    used = np.ones(5, bool) if is_used is None else np.array(is_used)
    return BoxList(ROWS, BOXES, lambda i: f"file: record {i}", used)


@pytest.mark.parametrize("drops", [False, True])
def test_rows_are_grouped_and_bad_boxes_named(drops: bool) -> None:
    faults = FaultCollector()
    points = np.arange(10, dtype=np.float32).reshape(5, 1, 2)
    columns = boxes().build_columns(
        {"labels": np.arange(5), "points": points}, 3, SIZES, faults, drops, points=("points",)
    )
    assert columns["labels"].values.tolist() == [1, 4, 0]
    assert columns["boxes"].values.tolist() == BOXES[[1, 4, 0]].tolist()
    assert columns["boxes"].offsets is not None
    assert columns["boxes"].offsets.tolist() == [0, 2, 2, 3]
    assert columns["points"].kind == "points"
    assert columns["points"].values.tolist() == points[[1, 4, 0]].tolist()
    assert {kind: count for kind, (count, _) in faults.counts.items()} == {NO_AREA: 1, OUTSIDE: 1}
    joined = faults.join()
    assert joined.rows.tolist() == ([] if drops else [1, 2])
    if not drops:
        assert "record 3: the box [70, 0, 80, 9]" in joined.explain(1)
        assert "outside of its image of 50 x 50 pixels" in joined.explain(1)
        assert "record 2: the box [3, 3, 3, 4]" in joined.explain(2)
        assert "data.bad_boxes" in joined.explain(2)


def test_unused_boxes_have_no_faults() -> None:
    faults = FaultCollector()
    listed = boxes([True, True, False, True, True])
    listed = listed.add_faults("odd", np.array([0, 0, 1, 1, 0], bool), lambda i: f"odd {i}", faults)
    columns = listed.build_columns({}, 3, SIZES, faults, drops_bad=False)
    assert len(columns["boxes"].values) == 3
    assert faults.counts == {"odd": (1, "file: record 3: odd 3")}


def test_no_boxes_at_all() -> None:
    none = BoxList(np.empty(0, np.int64), np.empty((0, 4)), str, np.empty(0, bool))
    columns = none.build_columns({"labels": np.empty(0, int)}, 2, SIZES, FaultCollector(), False)
    assert columns["boxes"].values.shape == (0, 4)
    assert columns["boxes"].offsets is not None
    assert columns["boxes"].offsets.tolist() == [0, 0, 0]
