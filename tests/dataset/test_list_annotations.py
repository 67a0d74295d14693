"""Annotations made from lists: labels, names of classes, and a class of the sample itself."""

import re
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.index import Index, build
from gpupipe.dataset.list_annotations import annotate_index
from gpupipe.dataset.list_columns import ListColumn
from gpupipe.errors import DataError
from gpupipe.formats.list_values import ListValues, read_json_lists

COLUMNS = {
    "boxes": ListColumn(column="b", kind="boxes", format="xyxy"),
    "labels": ListColumn.model_validate({"column": "n", "with": "boxes"}),
}
BOX = [0.0, 0.0, 2.0, 2.0]


def annotated(labels: list[list[Any]], has_label: bool = False, **options: Any) -> Index:
    index = build("/x", ["a", "b"], np.array([1, 0]), ["no", "yes"])
    rows = [{"b": [BOX] * len(row), "n": row} for row in labels]
    lists: dict[str, ListValues] = {
        name: read_json_lists(rows, *column.place) for name, column in COLUMNS.items()
    }
    options = {"drops_bad": False} | options
    return annotate_index(
        index, COLUMNS, lists, lambda i: f"list:{i}", has_label=has_label, **options
    )


def test_labels_are_names_or_numbers() -> None:
    named = annotated([["b", "a"], ["b"]])
    assert named.classes == ["a", "b"]
    assert named.annotations["labels"].values.tolist() == [1, 0, 1]
    assert not named.has_labels
    numbered = annotated([[2, 0], [1]])
    assert numbered.classes == ["0", "1", "2"]
    known = annotated([[2, 0], [1]], class_names=["x", "y", "z", "w"])
    assert known.classes == ["x", "y", "z", "w"]
    assert len({named.fingerprint, numbered.fingerprint, known.fingerprint}) == 3


def test_a_sample_may_have_a_class_too() -> None:
    index = annotated([[2, 0], [1]], has_label=True)
    assert index.has_labels
    assert index.classes == ["no", "yes"]
    assert index.labels.tolist() == [1, 0]


@pytest.mark.parametrize("label", [-1, 1.5, 10**9])
def test_labels_that_are_no_classes_are_refused(label: float) -> None:
    with pytest.raises(DataError, match=r"list:1: the label .* is no class"):
        annotated([[0, 1], [label]])


def test_no_boxes_at_all() -> None:
    index = annotated([[], []])
    assert index.annotations["boxes"].values.shape == (0, 4)
    assert index.annotations["labels"].values.shape == (0,)


def with_points(*points: Any, **settings: Any) -> Index:
    """The index of samples with a box each, and with these lists of two points."""
    column = {"column": "p", "kind": "points", "format": "xyv", "count": 2, "with": "boxes"}
    columns = COLUMNS | {"keypoints": ListColumn.model_validate(column | settings)}
    rows = [{"b": [BOX] * len(of_row), "n": ["a"] * len(of_row), "p": of_row} for of_row in points]
    lists = {name: read_json_lists(rows, *column.place) for name, column in columns.items()}
    index = build("/x", [f"{n}" for n in range(len(rows))], None, [])
    return annotate_index(index, columns, lists, lambda i: f"list:{i}", False, False)


def test_points_have_coordinates_and_visibility() -> None:
    index = with_points([[1, 2, 2, 3, 4, 0]], [], [[[5.5, 6, 1], [0, 0, 0]]])
    assert list(index.annotations) == ["boxes", "labels", "keypoints", "visibility"]
    points, seen = index.annotations["keypoints"], index.annotations["visibility"]
    assert points.values.tolist() == [[[1, 2], [3, 4]], [[5.5, 6], [0, 0]]]
    assert (points.kind, points.rows_with, points.values.dtype) == ("points", "boxes", np.float32)
    assert (seen.values.tolist(), seen.values.dtype) == ([[2, 0], [1, 0]], np.int64)
    plain = with_points([[0.5, 0.25, 1, 1]], format="xy", normalized=True)
    assert plain.annotations["keypoints"].is_normalized
    assert not plain.annotations["boxes"].is_normalized
    assert "visibility" not in plain.annotations


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ([1, 2, 3, 0, 0, 0], r"'p': \[1, 2, 3\] is no point: .*visibility is 0, 1 or 2"),
        ([1, 2, 0.5, 0, 0, 0], "visibility is 0, 1 or 2"),
        ([0, 0, 0, float("nan"), 2, 1], r"\[nan, 2, 1\] is no point"),
        ([0, 0, 0, 1e9, 2, 1], "below 2"),
        ([0, 0, 0], "no list of 6 numbers"),
    ],
)
def test_bad_points_break_their_sample(item: list[float], reason: str) -> None:
    index = with_points([[0, 0, 0, 0, 0, 0]], [item])
    assert index.faults.rows.tolist() == [1]
    assert re.search(f"list:1: .*{reason}", index.faults.explain(1))
    assert len(index.annotations["keypoints"].values) == 1
