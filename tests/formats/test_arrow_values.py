"""Labels, numbers and texts in the columns of pyarrow tables."""

from typing import Any

import numpy as np
import pytest

from gpupipe.formats.arrow_values import LabelsAndValues, read_labels, read_numbers, read_texts
from gpupipe.formats.list_values import ListPlace

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())]
)
def test_texts_and_labels_of_any_type_of_text(kind: Any) -> None:
    texts = ["crab", "ant", "crab"]
    array = pa.array(texts).cast(kind)
    assert read_texts(array, "species") == texts
    assert read_labels(array, "species") == texts


def test_labels_are_whole_numbers_and_values_any_numbers() -> None:
    labels = read_labels(pa.array([3, 0], pa.uint8()), "y")
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == [3, 0]
    assert labels.dtype == np.int64
    assert read_numbers(pa.array([True, False]), "flag").tolist() == [1, 0]
    assert read_numbers(pa.array([0.5, 2.0], pa.float32()), "x").dtype == np.float64


@pytest.mark.parametrize(
    ("values", "kind", "why"),
    [
        ([1, None], pa.int64(), "no value in the column 'y'"),
        ([0.5], pa.float64(), "'y' holds double.*data.label"),
        ([2**63], pa.uint64(), r"'y' \(.*data.label"),
    ],
)
def test_what_is_no_label_is_named(values: list[Any], kind: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_labels(pa.array(values, kind), "y")


def test_texts_are_no_numbers() -> None:
    with pytest.raises(ValueError, match=r"'x' holds string.*data\.values"):
        read_numbers(pa.array(["a"]), "x")


def test_tables_are_collected_one_after_the_other() -> None:
    found = LabelsAndValues("y", {"age": "years"}, {"boxes": ListPlace("objects.bbox", 4)})
    columns = ["years", "objects", "y", "image"]
    assert found.find_columns(columns) == ["y", "years", "objects"]
    with pytest.raises(ValueError, match=r"no column 'objects\.bbox'"):
        found.find_columns(["y", "years"])
    for first in (0, 2):
        objects = [{"bbox": [[0, 0, 1, number]]} for number in (first, first + 1)]
        rows = {"y": ["a", "b"], "years": [first, first + 1], "objects": objects}
        found.add(pa.table(rows))
    assert found.labels == [["a", "b"], ["a", "b"]]
    assert found.join_values()["age"].tolist() == [0, 1, 2, 3]
    lists = found.join_lists()["boxes"]
    assert lists.counts.tolist() == [1, 1, 1, 1]
    assert lists.values[:, 3].tolist() == [0, 1, 2, 3]  # type: ignore[call-overload,index]
