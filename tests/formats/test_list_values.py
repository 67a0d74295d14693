"""Lists in rows of JSON."""

from typing import Any

import pytest

from gpupipe.formats.list_values import join_lists, read_json_lists
from helpers.list_files import plain


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


def test_tables_are_joined_and_must_be_of_one_kind() -> None:
    first = read_json_lists([{"a": [1]}, {"a": 5}], "a", 0)
    second = read_json_lists([{"a": []}, {"a": "x"}, {"a": [2, 3]}], "a", 0)
    joined = join_lists([first, second], "a")
    assert plain(joined)[:2] == ([1, 2, 3], [1, 0, 0, 0, 2])
    assert sorted(joined.faults) == [1, 3]
    with pytest.raises(ValueError, match="texts and numbers"):
        join_lists([first, read_json_lists([{"a": ["t"]}], "a", 0)], "a")
