"""The names of the classes in a list or a file, and labels as numbers or names."""

from pathlib import Path

import numpy as np
import pytest

from gpupipe.dataset.class_names import number_labels, read_class_names
from gpupipe.errors import DataError

NAMES = ("ship", "cat", "7")


def number(labels: list[str] | list[int]) -> list[int]:
    given = np.array(labels) if isinstance(labels[0], int) else [str(label) for label in labels]
    numbers, names = number_labels(given, len(labels), lambda i: f"sample {i}", NAMES)
    assert names == list(NAMES)
    return numbers.tolist()


def test_numbers_are_positions_and_names_get_their_numbers_from_the_list() -> None:
    assert number([2, 0, 1]) == [2, 0, 1]
    assert number(["2", "0"]) == [2, 0]
    assert number(["cat", "ship", "7"]) == [1, 0, 2]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 3], "sample 1: the label 3 is none of the 3 classes"),
        (["ship", "cta"], "sample 1: the label 'cta' is none of data.classes; did you mean 'cat'"),
        (["0", "cat"], "sample 1: the label 'cat' is a name"),
    ],
)
def test_labels_that_are_no_class_are_refused(labels: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        number(labels)


def test_a_file_has_a_name_on_each_line_and_empty_names_count(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_bytes("\ncafé\u2028noir\r\ncat\n".encode())
    assert read_class_names(path) == ("", "café\u2028noir", "cat")
    assert read_class_names(("a", "b")) == ("a", "b")
    assert read_class_names(None) == ()
    with pytest.raises(DataError, match="nowhere"):
        read_class_names(tmp_path / "nowhere")
