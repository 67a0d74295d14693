"""Files of named arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpupipe.dataset.table_file import (
    Arrays,
    OtherVersion,
    Unpacker,
    compute_checksum,
    open_table,
    pack,
    write_table,
)

ARRAYS = {
    "ids": np.arange(2000, dtype=np.int64),
    "weights": np.linspace(0, 1, 7, dtype=np.float32).reshape(7, 1),
    "flags": np.array([True, False]),
    "none": np.empty((0, 3), np.uint8),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new" / "folder" / "x.table"
    write_table(path, {"about": ["a", 1]}, ARRAYS)
    return path


def test_header_and_arrays_come_back(file: Path) -> None:
    header, arrays = open_table(file)
    assert header == {"about": ["a", 1]}
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
    assert [path.name for path in file.parent.iterdir()] == ["x.table"]


def test_a_change_of_any_byte_or_length_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    header, _ = open_table(file)
    for place in [*range(0, 400, 7), *range(400, len(whole), 1501), len(whole) - 1]:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = open_table(file)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        assert found[0] == header, "only padding may change unnoticed"
        assert all(np.array_equal(found[1][name], ARRAYS[name]) for name in ARRAYS)
    for content in (whole[:-1], whole + b"\0", whole[:50], b""):
        file.write_bytes(content)
        with pytest.raises((ValueError, TypeError)):
            open_table(file)


def test_a_file_of_another_version_is_told_from_a_damaged_one(file: Path) -> None:
    file.write_bytes(b"gpupipe-index-3\n" + file.read_bytes()[16:])
    with pytest.raises(OtherVersion):
        open_table(file)


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


def test_a_dataclass_of_arrays_comes_back_and_what_is_shared_stays_shared() -> None:
    inner = Inner(np.arange(3))
    arrays: Arrays = {}
    packed = pack(Outer("a", inner, inner, (2, 3), {"x": np.zeros(2)}), arrays, "", {})
    assert list(arrays) == ["first.numbers", "by_name.x"]
    plain = json.loads(json.dumps(packed))
    found = Unpacker(arrays, {}).unpack(Outer, plain, "")
    assert (found.name, found.shape, found.first.flags) == ("a", (2, 3), None)
    assert found.first is found.second
    assert found.first.numbers is inner.numbers
    assert found.by_name["x"] is arrays["by_name.x"]


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
    change: dict[str, Any], error: type[Exception]
) -> None:
    inner = Inner(np.arange(3))
    arrays: Arrays = {}
    packed = pack(Outer("a", inner, inner, (2, 3), {"x": np.zeros(2)}), arrays, "", {})
    with pytest.raises(error):
        Unpacker(arrays, {}).unpack(Outer, json.loads(json.dumps(packed)) | change, "")
