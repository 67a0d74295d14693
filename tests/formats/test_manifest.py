"""Files of ids."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.errors import DataError
from gpupipe.formats.manifest import read_ids


def written(folder: Path, content: bytes) -> Path:
    file = folder / "ids.txt"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    "content",
    [b"7\n0\n3\n", b"7\r\n0\r\n3", b"\xef\xbb\xbf7\n\n  0 \n3\n\n", b"007\n0\n3"],
    ids=repr,
)
def test_ids_are_read_in_ascending_order(tmp_path: Path, content: bytes) -> None:
    assert read_ids(written(tmp_path, content), 8).tolist() == [0, 3, 7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\n2\n8\n", ":3: 8 is no id: the ids of 8 samples are 0 to 7"),
        (b"1\n-2\n", ":2: '-2' is no id"),
        (b"1.0\n", ":1: '1.0' is no id"),
        (b"n01440764_10026.JPEG\n", ":1: 'n01440764_10026.JPEG' is no id"),
        (b"\xff\xfe\n", ":1: '\ufffd\ufffd' is no id"),
        (b"9" * 5000, ":1: '999"),
        ("\u0663\n".encode(), ":1: '\u0663' is no id"),
        (b"4\n5\n\n4\n5\n", ":4: id 4 came before"),
        (b"", ": no ids in it"),
        (b"\n \n", ": no ids in it"),
    ],
    ids=repr,
)
def test_lines_that_are_no_ids_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(DataError) as error:
        read_ids(file, 8)
    assert str(error.value).startswith(f"{file}{message}")
    assert len(str(error.value)) < 400 + len(str(file))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read: .*: set loader\.subset to a share"):
            read_ids(path, 8)


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_any_bytes_are_ids_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = written(tmp_path_factory.mktemp("any"), content)
    try:
        ids = read_ids(file, 100).tolist()
    except DataError:
        return
    assert ids and ids == sorted(set(ids)) and 0 <= ids[0] <= ids[-1] < 100
