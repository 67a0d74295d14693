"""Lists in columns of Arrow: as JSON gives them, in every form, and slices of tables too."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpupipe.formats.arrow_lists import find_top_column, read_arrow_lists
from gpupipe.formats.list_values import join_lists, read_json_lists
from helpers.list_files import plain

ROWS: list[dict[str, Any]] = [
    {
        "o": {"box": [[1.0, 2, 3, 4], [5, 6, 7, 8]], "n": [1, 2], "x": [0.5, 1.5]},
        "s": [{"t": "a", "in": {"n": 3}}, {"t": "b", "in": {"n": 4}}],
    },
    {"o": {"box": [], "n": [], "x": []}, "s": []},
    {"o": {"box": [[9.0, 8, 7, 6]], "n": [7], "x": [2.5]}, "s": [{"t": "a", "in": {"n": 5}}]},
]
PATHS = {"o.box": 4, "o.n": 0, "o.x": 0, "s.t": 0, "s.in.n": 0}


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


@pytest.mark.parametrize(
    ("column", "path"),
    [
        ([[], []], "o"),
        ([[], []], "o.box"),
        ([[], []], "o.in.box"),
        ([{"box": []}, {"box": []}], "o.box"),
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [0, 4])
def test_lists_that_are_all_empty_are_read_without_a_type(
    column: list[Any], path: str, width: int
) -> None:
    assert plain(read_arrow_lists(pa.table({"o": column}), path, width)) == ([], [0, 0], {})


def test_boxes_without_numbers_are_faults_of_their_rows() -> None:
    lists = read_arrow_lists(pa.table({"o": [[[]], []]}), "o", 4)
    assert plain(lists) == ([], [0, 0], {0: "'o': 0 numbers in place of 4"})


def test_columns_of_nulls_alone_are_faults_of_their_rows() -> None:
    missing = read_arrow_lists(pa.table({"o": pa.nulls(2)}), "o.box", 4)
    assert missing.counts.tolist() == [0, 0]
    assert missing.faults == dict.fromkeys(range(2), "'o.box': empty is no list")
    nothing = read_arrow_lists(pa.table({"o": [[None], []]}), "o.box", 4)
    assert nothing.counts.tolist() == [0, 0]
    assert list(nothing.faults) == [0]


def test_a_table_without_any_item_is_joined_with_texts() -> None:
    tables = [pa.table({"o": [{"t": ["a"]}]}), pa.table({"o": [[], []]})]
    joined = join_lists([read_arrow_lists(table, "o.t", 0) for table in tables], "o.t")
    assert plain(joined) == (["a"], [1, 0, 0], {})


@pytest.mark.parametrize("kind", ["list", "fixed"])
def test_groups_of_numbers_are_joined(kind: str) -> None:
    rows = [[[[1.0, 2, 0], [3, 4, 2]]], [], [[[5.0, 6, 1], [7, 8, 0]], [[9.0, 9, 2], [0, 0, 0]]]]
    point = pa.list_(pa.float64(), 3) if kind == "fixed" else pa.list_(pa.float64())
    table = pa.table({"p": pa.array(rows, pa.list_(pa.list_(point)))})
    expected = plain(read_json_lists([{"p": row} for row in rows], "p", 6, 3))
    assert plain(read_arrow_lists(table, "p", 6, 3)) == expected
    assert plain(read_arrow_lists(table.slice(1), "p", 6, 3))[:2] == (expected[0][1:], [0, 2])
    flat = pa.table({"p": [[[n for one in item for n in one] for item in row] for row in rows]})
    assert plain(read_arrow_lists(flat, "p", 6, 3)) == expected


def test_groups_of_wrong_lengths_are_faults_of_their_rows() -> None:
    good = [[1.0, 2, 0], [3, 4, 2]]
    rows = [[good], [[[1.0, 2], [3, 4, 5, 6]]], [good[:1]], [[]], [None], [good, good]]
    lists = read_arrow_lists(pa.table({"p": rows}), "p", 6, 3)
    assert lists.counts.tolist() == [1, 0, 0, 0, 0, 2]
    assert "lists of other lengths than 3" in lists.faults[1]
    assert "3 numbers in place of 6" in lists.faults[2]
    assert sorted(lists.faults) == [1, 2, 3, 4]
    same = read_json_lists([{"p": row} for row in rows], "p", 6, 3)
    assert plain(same)[:2] == plain(lists)[:2]
    assert "[1.0, 2] is no list of 3 numbers" in same.faults[1]
    assert sorted(same.faults) == sorted(lists.faults)
