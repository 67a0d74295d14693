import os
from pathlib import Path

import numpy as np
import pytest

from gpupipe.dataset.columns import ArrayLayout, StringArray
from gpupipe.dataset.file_columns import FileColumn, SpanColumn
from gpupipe.dataset.mapped_files import MappedFiles, map_files

ROWS = np.array([3, 0, 2])
_LENGTH = 5


def _column(folder: Path, files: int = 2) -> SpanColumn:
    """Return a column of two rows a file, after 3 bytes that belong to none."""
    names = [f"{n}.bin" for n in range(files)]
    for n, name in enumerate(names):
        (folder / name).write_bytes(bytes(range(20 * (n % 2), 20 * (n % 2) + 3 + 2 * _LENGTH)))
    file = np.repeat(np.arange(files, dtype=np.int32), 2)
    offset = np.tile(np.array([3, 3 + _LENGTH]), files)
    length = np.full(2 * files, _LENGTH)
    layout = ArrayLayout("uint8", (_LENGTH,))
    return SpanColumn(str(folder), StringArray.from_strings(names), file, offset, length, layout)


def _map(column: SpanColumn) -> MappedFiles:
    mapped = map_files(column)
    assert mapped is not None
    return mapped


def test_rows_are_slices_of_the_map(tmp_path: Path) -> None:
    column = _column(tmp_path)
    rows = _map(column).read(ROWS)
    assert [row.tolist() for row in rows] == [row.tolist() for row in column.read(ROWS)]
    assert not any(row.flags.writeable or row.flags.owndata for row in rows)


def test_a_file_is_mapped_once(tmp_path: Path) -> None:
    mapped = _map(_column(tmp_path))
    first, again = mapped.read(ROWS), mapped.read(ROWS)
    assert all(np.shares_memory(a, b) for a, b in zip(first, again, strict=True))


def test_a_file_that_was_replaced_is_mapped_again(tmp_path: Path) -> None:
    mapped = _map(_column(tmp_path))
    before = mapped.read(np.array([0]))[0]
    (tmp_path / "new").write_bytes(bytes(100))
    os.replace(tmp_path / "new", tmp_path / "0.bin")
    assert mapped.read(np.array([0]))[0].tolist() == [0] * _LENGTH
    assert before.tolist() == [3, 4, 5, 6, 7]


def test_a_file_that_was_truncated_is_an_error(tmp_path: Path) -> None:
    mapped = _map(_column(tmp_path))
    mapped.read(ROWS)
    os.truncate(tmp_path / "1.bin", 6)
    with pytest.raises(ValueError, match=r"1\.bin ends 7 bytes before the sample does"):
        mapped.read(ROWS)
    assert mapped.read(np.array([1]))[0].tolist() == [8, 9, 10, 11, 12]


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    mapped = _map(_column(tmp_path))
    (tmp_path / "0.bin").unlink()
    with pytest.raises(FileNotFoundError):
        mapped.read(ROWS)


def test_files_that_would_take_too_many_descriptors_are_not_mapped(tmp_path: Path) -> None:
    assert map_files(_column(tmp_path, files=256)) is not None
    assert map_files(_column(tmp_path, files=257)) is None


def test_whole_files_and_no_column_are_not_mapped(tmp_path: Path) -> None:
    assert map_files(FileColumn(str(tmp_path), StringArray.from_strings(["a.jpg"]))) is None
    assert map_files(None) is None
