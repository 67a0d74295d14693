"""Lists in rows: Arrow and JSON give the same, in every form, and slices of tables too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpupipe.formats.list_values import (
    ListValues,
    find_top_column,
    join_lists,
    read_arrow_lists,
    read_json_lists,
)

ROWS: list[dict[str, Any]] = [
    {
        "o": {"box": [[1.0, 2, 3, 4], [5, 6, 7, 8]], "n": [1, 2], "x": [0.5, 1.5]},
        "s": [{"t": "a", "in": {"n": 3}}, {"t": "b", "in": {"n": 4}}],
    },
    {"o": {"box": [], "n": [], "x": []}, "s": []},
    {"o": {"box": [[9.0, 8, 7, 6]], "n": [7], "x": [2.5]}, "s": [{"t": "a", "in": {"n": 5}}]},
]
PATHS = {"o.box": 4, "o.n": 0, "o.x": 0, "s.t": 0, "s.in.n": 0}


def plain(lists: ListValues) -> tuple[Any, list[int], dict[int, str]]:
    values = lists.values if isinstance(lists.values, list) else lists.values.tolist()
    return values, lists.counts.tolist(), lists.faults


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_arrow_and_json_hold_the_same(path: str, first: int) -> None:
    table = pa.Table.from_pylist(ROWS)
    expected = plain(read_json_lists(ROWS[first:], path, PATHS[path]))
    assert plain(read_arrow_lists(table.slice(first), path, PATHS[path])) == expected
    batch = table.combine_chunks().to_batches()[0].slice(first)
    assert plain(read_arrow_lists(batch, path, PATHS[path])) == expected
    assert expected[1] == [2, 0, 1][first:]
    assert not expected[2]


def test_names_with_dots_and_lists_of_a_fixed_size() -> None:
    fixed = pa.array([[[1, 2, 3, 4]], []], pa.list_(pa.list_(pa.float32(), 4)))
    table = pa.table({"o.box": fixed, "o": [1, 2]})
    assert plain(read_arrow_lists(table, "o.box", 4)) == ([[1, 2, 3, 4]], [1, 0], {})
    assert find_top_column(["o.box", "o"], "o.box") == "o.box"


@pytest.mark.parametrize(
    ("value", "width", "reason"),
    [
        ([[1, 2, 3]], 4, "no list of 4 numbers"),
        ([[1, 2, 3, "x"]], 4, "'x' is no number"),
        ([[1, 2, 3, True]], 4, "true is no number"),
        ([[1, 2, 3, 10**30]], 4, "is no number"),
        ([1, "a"], 0, "is a text"),
        (["a", 1], 0, "is a text"),
        ([None], 0, "empty is no number"),
        ("ab", 0, "is no list"),
        ({"a": []}, 0, "is no list"),
        (None, 4, "empty is no list"),
    ],
)
def test_a_wrong_json_list_is_a_fault_of_its_row(value: Any, width: int, reason: str) -> None:
    good: Any = [[1.0, 2, 3, 4]] if width else [1]
    lists = read_json_lists([{"a": good}, {"a": value}, {"a": good}], "a", width)
    assert list(lists.faults) == [1]
    assert reason in lists.faults[1]
    assert lists.counts.tolist() == [1, 0, 1]
    assert len(lists.values) == 2


def test_wrong_arrow_lists_are_faults_of_their_rows() -> None:
    boxes = [[[1.0, 2, 3, 4]], None, [[1.0, 2, 3, 4], [1.0]], [[5.0, 6, 7, 8]]]
    lists = read_arrow_lists(pa.table({"b": boxes}), "b", 4)
    assert plain(lists)[:2] == ([[1, 2, 3, 4], [5, 6, 7, 8]], [1, 0, 0, 1])
    assert sorted(lists.faults) == [1, 2]
    texts = read_arrow_lists(pa.table({"t": [["a"], ["b", None], ["c"]]}), "t", 0)
    assert plain(texts)[:2] == (["a", "c"], [1, 0, 1])
    numbers = read_arrow_lists(pa.table({"n": [[1.5], [None]]}), "n", 0)
    assert np.isnan(numbers.values).tolist() == [False, True]


def test_columns_without_lists_are_refused() -> None:
    table = pa.table({"a": [1], "o": [{"b": [1]}], "d": [[{"x": 1}]]})
    for path, width, reason in (
        ("a", 0, "no lists"),
        ("o.c", 0, "no 'c'"),
        ("b", 0, "has no column 'b'"),
        ("o.b", 4, "no lists of lists"),
        ("d", 0, "no numbers or texts"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_arrow_lists(table, path, width)


def test_tables_are_joined_and_must_be_of_one_kind() -> None:
    first = read_json_lists([{"a": [1]}, {"a": 5}], "a", 0)
    second = read_json_lists([{"a": []}, {"a": "x"}, {"a": [2, 3]}], "a", 0)
    joined = join_lists([first, second], "a")
    assert plain(joined)[:2] == ([1, 2, 3], [1, 0, 0, 0, 2])
    assert sorted(joined.faults) == [1, 3]
    with pytest.raises(ValueError, match="texts and numbers"):
        join_lists([first, read_json_lists([{"a": ["t"]}], "a", 0)], "a")
