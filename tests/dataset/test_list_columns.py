"""Annotations made from lists: labels, names of classes, and a class of the sample itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.index import Index, build
from gpupipe.dataset.list_columns import ListColumn, annotate_index
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
