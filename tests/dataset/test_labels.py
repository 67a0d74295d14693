"""Labels as data sets write them, and the numbers of their classes."""

import numpy as np
import pytest

from gpupipe.dataset import labels
from gpupipe.errors import DataError


def where(row: int) -> str:
    return f"row {row}"


def test_names_are_numbered_in_sorted_order() -> None:
    numbers, classes = labels.from_texts(["dog", "cat", "dog", "10x"], where)
    assert (numbers.tolist(), classes) == ([2, 1, 2, 0], ["10x", "cat", "dog"])


def test_whole_numbers_stay_as_they_are() -> None:
    numbers, classes = labels.from_texts(["3", "0", "03"], where)
    assert (numbers.tolist(), classes) == ([3, 0, 3], ["0", "1", "2", "3"])
    numbers, classes = labels.from_texts(["0.0", "2.00", "1."], where)
    assert (numbers.tolist(), classes) == ([0, 2, 1], ["0", "1", "2"]), "as tables write them"
    assert labels.from_numbers(np.array([2, 0]), where)[1] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["1", ""], "row 1: the label is empty"),
        (["a", "b\0"], "row 1: a NUL byte in the label"),
        (["1", "1.5"], "row 1: the label 1.5 is not a whole number"),
        (["a", "a", "2"], "row 2: .* is a whole number, but the first sample's is a name"),
        (["1", "b"], "row 1: .* is a name, but the first sample's is a whole number"),
        (["0", "-1"], "row 1: .* is negative"),
        (["0", "10000000"], "row 1: .* is too large"),
        (["0", "9" * 5000], "row 1: .* is too large"),
    ],
)
def test_labels_that_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        labels.from_texts(texts, where)


@pytest.mark.parametrize(("number", "said"), [(-1, "negative"), (10**7, "too large")])
def test_numbers_that_are_refused(number: int, said: str) -> None:
    with pytest.raises(DataError, match=f"row 2: .*{said}"):
        labels.from_numbers(np.array([0, 1, number]), where)


def test_samples_without_labels_are_of_no_class() -> None:
    numbers, classes = labels.make_unlabelled(3)
    assert (numbers.tolist(), numbers.dtype, classes) == ([-1, -1, -1], np.int64, [])
