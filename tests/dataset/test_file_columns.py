"""Columns of files and of parts of files."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.columns import Column, Rows, StringArray
from gpupipe.dataset.file_columns import FileColumn, SpanColumn

CONTENTS = [b"first", b"", b"the third one"]
ROWS = np.array([2, 0])


@pytest.fixture
def files(tmp_path: Path) -> FileColumn:
    names = [f"{n}.jpg" for n in range(len(CONTENTS))]
    for name, content in zip(names, CONTENTS, strict=True):
        (tmp_path / name).write_bytes(content)
    return FileColumn(str(tmp_path), StringArray.from_strings(names))


@pytest.fixture
def spans(tmp_path: Path) -> SpanColumn:
    """Rows of two files, in another order than the files have them."""
    (tmp_path / "one.bin").write_bytes(b"..the third one")
    (tmp_path / "two.bin").write_bytes(b"first....")
    return SpanColumn(
        str(tmp_path),
        StringArray.from_strings(["one.bin", "two.bin"]),
        np.array([1, 1, 0], np.int32),
        np.array([0, 9, 2]),
        np.array([5, 0, 13]),
    )


@pytest.fixture(params=["files", "spans"])
def column(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def read(column: Column, rows: Rows) -> list[bytes]:
    return [content.tobytes() for content in column.read(rows)]


def test_rows_are_read_in_the_order_that_is_asked_for(column: Column) -> None:
    assert len(column) == 3
    assert read(column, ROWS) == [CONTENTS[2], CONTENTS[0]]
    assert read(column, np.array([1])) == [b""]


def test_chosen_rows_are_a_column(column: Column) -> None:
    some = column.take(ROWS)
    assert read(some, np.arange(2)) == [CONTENTS[2], CONTENTS[0]]
    assert read(pickle.loads(pickle.dumps(some)), np.arange(2)) == read(some, np.arange(2))
    assert some.get_sizes(np.arange(2)) == [13, 5]


def test_the_ends_and_the_size_of_a_row(column: Column) -> None:
    assert column.read_ends(2, 3, 3) == (b"the", b"one", 13)
    assert column.read_ends(0, 100, 100) == (CONTENTS[0], CONTENTS[0], 5)


def test_a_file_is_named_by_its_path_and_a_part_of_one_by_its_sample(
    files: FileColumn, spans: SpanColumn, tmp_path: Path
) -> None:
    assert files.location(0, "any") == str(tmp_path / "0.jpg")
    assert spans.location(2, "dogs/7.jpg") == f"{tmp_path / 'one.bin'}:dogs/7.jpg"
    assert spans.location(2, "one.bin") == str(tmp_path / "one.bin")


def test_a_file_that_is_missing_has_no_size_and_is_named(files: FileColumn, tmp_path: Path) -> None:
    (tmp_path / "2.jpg").unlink()
    assert files.get_sizes(np.arange(3)) == [5, 0, None]
    with pytest.raises(FileNotFoundError) as caught:
        files.read(np.array([2]))
    assert str(tmp_path / "2.jpg") in str(caught.value)


def test_a_fifo_is_irregular_and_a_link_is_followed(files: FileColumn, tmp_path: Path) -> None:
    (tmp_path / "0.jpg").unlink()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "0.jpg").symlink_to(tmp_path / "fifo")
    (tmp_path / "1.jpg").unlink()
    (tmp_path / "1.jpg").symlink_to(tmp_path / "2.jpg")
    assert files.find_irregular(np.array([1, 0, 2])) == [1]


def test_a_part_beyond_the_end_of_its_file_is_an_error(spans: SpanColumn, tmp_path: Path) -> None:
    (tmp_path / "one.bin").write_bytes(b"..the th")
    with pytest.raises((OSError, ValueError), match=r"one\.bin"):
        spans.read(np.array([2]))


def test_the_fingerprint_follows_what_rows_hold_and_not_where_the_data_lie(
    spans: SpanColumn,
) -> None:
    def parts(column: SpanColumn) -> list[Any]:
        return [part.tolist() for part in column.fingerprint_parts(column.files)]

    files, file, offset, length = spans.files, spans.file, spans.offset, spans.length
    assert parts(spans) == parts(SpanColumn("/elsewhere", files, file, offset, length))
    assert parts(spans) != parts(SpanColumn(spans.root, files, file, offset, length + 1))
