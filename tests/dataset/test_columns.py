"""What the contract of columns gives every column; strings in one array."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpupipe.dataset.columns import ArrayLayout, Column, Rows, StringArray, as_array, read_rows
from gpupipe.errors import EngineError


@pytest.mark.parametrize("shape", [(2, 3), None])
def test_bytes_become_arrays_of_the_shape_that_is_stated(shape: tuple[int, ...] | None) -> None:
    layout = ArrayLayout("int16", shape, None if shape else np.array([[9, 9], [2, 3]]))
    layout = layout if shape else layout.take(np.array([1, 0]))
    array = as_array(np.arange(6, dtype=np.int16).view(np.uint8), layout, 0)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match=r"10 bytes, but int16 of shape .*2.*3.* has 12"):
        as_array(np.zeros(10, np.uint8), layout, 0)


@dataclass(frozen=True)
class Failing(Column):
    """A plugin's column that raises an error."""

    error: Exception

    def __len__(self) -> int:
        return 1

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        raise self.error

    def location(self, row: int, name: str) -> str:
        return name

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return []

    def take(self, rows: Rows) -> Column:
        return self


@pytest.mark.parametrize("error", [OSError("x"), ValueError("x"), MemoryError(), EngineError("x")])
def test_errors_of_the_contract_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        read_rows(Failing(error), np.array([0]))
    assert caught.value is error


def test_any_other_error_is_the_plugins_and_says_what_to_raise() -> None:
    with pytest.raises(EngineError, match=r"Failing.read\(\) raised KeyError: 'k'. It should"):
        read_rows(Failing(KeyError("k")), np.array([0]))


def test_what_a_plugin_need_not_write() -> None:
    column = Failing(OSError())
    assert column.array is None
    assert column.span(0) is None
    assert column.get_sizes(np.array([0, 0])) == [None, None]
    assert column.can_sample


STRINGS = ["a/b.jpg", "", "größe.png", "\udcff.jpg", "x" * 300]


def test_strings_come_out_as_they_went_in() -> None:
    """Also names that are no UTF-8, as a file system has them."""
    strings = StringArray.from_strings(STRINGS)
    assert len(strings) == len(STRINGS)
    assert [strings[i] for i in range(len(strings))] == STRINGS
    assert not len(StringArray.from_strings([]))


def test_chosen_rows_in_their_order() -> None:
    taken = StringArray.from_strings(STRINGS).take(np.array([3, 0, 3]))
    assert [taken[i] for i in range(3)] == [STRINGS[3], STRINGS[0], STRINGS[3]]


def test_padding_ends_each_string_with_nul() -> None:
    padded = StringArray.from_strings(["ab", "", "cde"]).pad(np.array([2, 0, 1]), b"/r/")
    assert [row.tobytes() for row in padded] == [b"/r/cde", b"/r/ab\0", b"/r/\0\0\0"]


def test_where_a_string_ends_is_part_of_the_fingerprint() -> None:
    one, other = (StringArray.from_strings(s) for s in (["ab", "c"], ["a", "bc"]))
    parts = zip(one.fingerprint_parts, other.fingerprint_parts, strict=True)
    assert [np.array_equal(a, b) for a, b in parts] == [True, False]
