"""Files of named arrays."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpupipe.dataset.table_file import (
    OtherVersionError,
    compute_checksum,
    count_bytes,
    open_table,
    write_table,
)


@dataclass(frozen=True)
class Table:
    about: list[str]
    arrays: dict[str, NDArray[Any]]


TABLE = Table(
    ["a", "b"],
    {
        "ids": np.arange(2000, dtype=np.int64),
        "weights": np.linspace(0, 1, 7, dtype=np.float32).reshape(7, 1),
        "flags": np.array([True, False]),
        "none": np.empty((0, 3), np.uint8),
    },
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new" / "folder" / "x.table"
    write_table(path, TABLE)
    return path


def is_same(table: Table) -> bool:
    return table.about == TABLE.about and all(
        table.arrays[name].dtype == array.dtype and np.array_equal(table.arrays[name], array)
        for name, array in TABLE.arrays.items()
    )


def test_values_and_arrays_come_back(file: Path) -> None:
    table = open_table(file, Table)
    assert is_same(table)
    assert list(table.arrays) == list(TABLE.arrays)
    assert [path.name for path in file.parent.iterdir()] == ["x.table"]
    assert 0 <= file.stat().st_size - count_bytes(TABLE) < 1000


def test_a_change_of_any_byte_or_length_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for place in [*range(0, 400, 7), *range(400, len(whole), 1501), len(whole) - 1]:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = open_table(file, Table)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        assert is_same(found), "only padding may change unnoticed"
    for content in (whole[:-1], whole + b"\0", whole[:50], b""):
        file.write_bytes(content)
        with pytest.raises((ValueError, TypeError)):
            open_table(file, Table)


def test_a_file_of_another_version_is_told_from_a_damaged_one(file: Path) -> None:
    file.write_bytes(b"gpupipe-index-3\n" + file.read_bytes()[16:])
    with pytest.raises(OtherVersionError):
        open_table(file, Table)


def test_checksums_differ_by_every_bit() -> None:
    data = np.zeros(5000, np.uint8)
    sums = {compute_checksum(data)}
    for place in (0, 4095, 4096, 4999):
        changed = data.copy()
        changed[place] = 1
        sums.add(compute_checksum(changed))
    assert len(sums) == 5


@dataclass(frozen=True)
class Inner:
    numbers: NDArray[np.int64]
    flags: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    first: Inner
    second: Inner
    shape: tuple[int, ...] | None
    by_name: dict[str, NDArray[Any]]


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    """A table with a dataclass that stands in it twice."""
    inner = Inner(np.arange(3))
    write_table(tmp_path / "x.table", Outer("a", inner, inner, (2, 3), {"x": np.zeros(2)}))
    return tmp_path / "x.table"


def test_a_dataclass_of_arrays_comes_back_and_what_is_shared_stays_shared(outer: Path) -> None:
    found = open_table(outer, Outer)
    assert (found.name, found.shape, found.first.flags) == ("a", (2, 3), None)
    assert found.first is found.second
    assert found.first.numbers.tolist() == [0, 1, 2]
    assert found.by_name["x"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": 3}, TypeError),
        ({"shape": "23"}, TypeError),
        ({"second": {"same": "third"}}, KeyError),
        ({"first": {"class": "Inner"}}, KeyError),
        ({"by_name": {"x": "none"}}, KeyError),
        ({"first": {"numbers": "by_name.x", "flags": None}}, TypeError),
    ],
    ids=["name", "shape", "same", "field", "array", "dtype"],
)
def test_what_is_packed_otherwise_is_an_error(
    outer: Path, change: dict[str, Any], error: type[Exception]
) -> None:
    content = outer.read_bytes()
    length = int.from_bytes(content[16:24], "little")
    header = json.loads(content[32 : 32 + length])
    text = json.dumps(header | {"value": header["value"] | change}).encode()
    checked = (n.to_bytes(8, "little") for n in (len(text), zlib.crc32(text)))
    arrays = content[32 + length + -(32 + length) % 64 :]
    head = content[:16] + b"".join(checked) + text
    outer.write_bytes(head + b"\0" * (-len(head) % 64) + arrays)
    with pytest.raises(error):
        open_table(outer, Outer)
