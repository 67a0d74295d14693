"""The index, and how it is kept in a file."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset import index as indexes
from gpupipe.dataset import table_file
from gpupipe.dataset.columns import ArrayLayout, Column, StringArray
from gpupipe.dataset.file_columns import FileColumn, SpanColumn
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.index_cache import open_saved, save


def some_index(**changes: object) -> Index:
    given = {
        "root": "/images",
        "names": ["a/1.jpg", "b/2.jpg", "b/3.jpg"],
        "labels": np.array([0, 1, 1]),
        "classes": ["a", "b"],
        "extra": {"times": {"": 1}},
    }
    return build(**(given | changes))  # type: ignore[arg-type]


def test_saved_and_opened_again(tmp_path: Path) -> None:
    index = some_index(names=["a/ü.jpg", os.fsdecode(b"b/\xff.jpg"), "b/" + "x" * 999])
    save(index, tmp_path / "new" / "some.idx")
    again = open_saved(tmp_path / "new" / "some.idx")
    assert again is not None
    assert [again.location(i) for i in range(3)] == [index.location(i) for i in range(3)]
    assert again.labels.tolist() == [0, 1, 1]
    assert (again.root, again.classes, again.fingerprint, again.extra) == (
        index.root,
        index.classes,
        index.fingerprint,
        index.extra,
    )
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["some.idx"]


def test_columns_of_all_kinds_are_saved_and_opened_again(tmp_path: Path) -> None:
    place, shapes = np.arange(3, dtype=np.int64), np.array([[1, 2], [3, 4], [5, 6]])
    files = StringArray.from_strings(["x.tar", "y.tar", "z.tar"])
    columns: dict[str, Column] = {
        "image": FileColumn("/images", StringArray.from_strings(["a/1.jpg", "b/2.jpg", "b/3.jpg"])),
        "mask": FileColumn("/masks", StringArray.from_strings(["m1", "m2", "m3"])),
        "depth": SpanColumn(
            "/tars",
            files,
            place.astype(np.int32),
            place * 10,
            place + 1,
            ArrayLayout("float32", (2, 3)),
        ),
        "sound": SpanColumn(
            "", files, place.astype(np.int32), place, place, ArrayLayout("int16", None, shapes)
        ),
    }
    index = some_index(
        columns=columns,
        values={"weight": np.array([0.5, 1.5, 2.5]), "box": np.arange(12).reshape(3, 4)},
    )
    save(index, tmp_path / "some.idx")
    again = open_saved(tmp_path / "some.idx")
    assert again is not None
    assert list(again.columns) == list(columns)
    assert [again.columns[name].span(2) for name in columns] == [
        index.columns[name].span(2) for name in columns
    ]
    assert again.columns["depth"].span(2) == ("/tars/z.tar", 20, 3)
    assert [again.columns[n].array and again.columns[n].array.shape_of(1) for n in columns] == [
        None,
        None,
        (2, 3),
        (3, 4),
    ]
    assert {n: v.tolist() for n, v in again.values.items()} == {
        "weight": [0.5, 1.5, 2.5],
        "box": np.arange(12).reshape(3, 4).tolist(),
    }
    part = again.subset(np.array([2, 0]))
    assert [part.columns[name].span(0) for name in columns] == [
        index.columns[name].span(2) for name in columns
    ]
    assert (part.values["weight"].tolist(), part.columns["sound"].array.shape_of(1)) == (
        [2.5, 0.5],
        (1, 2),
    )


def test_the_fingerprint_is_of_all_columns_and_values() -> None:
    files, place = StringArray.from_strings(["x.tar"]), np.arange(3, dtype=np.int64)

    def spans(**changes: Any) -> Index:
        given: dict[str, Any] = {
            "root": "/",
            "files": files,
            "file": np.zeros(3, np.int32),
            "offset": place,
            "length": place,
            "array": ArrayLayout("float32", (2,)),
        }
        return some_index(columns={"image": SpanColumn(**(given | changes))})

    others = [
        some_index(),
        some_index(values={"weight": place}),
        some_index(values={"weight": place + 1}),
        some_index(
            columns={"image": FileColumn("/images", StringArray.from_strings(["a", "b", "c"]))}
        ),
        spans(),
        spans(array=None),
        spans(array=ArrayLayout("int16", (2,))),
        spans(array=ArrayLayout("float32", None, place[:, None])),
        spans(length=place + 1),
        spans(files=StringArray.from_strings(["y.tar"])),
    ]
    assert len({index.fingerprint for index in others}) == len(others)
    assert spans(root="/elsewhere", offset=place + 1).fingerprint == spans().fingerprint


def test_an_index_of_nothing_can_be_saved(tmp_path: Path) -> None:
    save(indexes.build_empty(), tmp_path / "none.idx")
    again = open_saved(tmp_path / "none.idx")
    assert again is not None
    assert len(again) == 0


def spans_of(count: int, **changes: Any) -> Index:
    """Return an index of `count` rows in two files."""
    parts: dict[str, Any] = {
        "file": np.arange(count, dtype=np.int32) % 2,
        "offset": np.arange(count) * 10,
        "length": np.full(count, 10),
    }
    column = SpanColumn("/", StringArray.from_strings(["x.tar", "y.tar"]), **(parts | changes))
    names = [f"{n}.jpg" for n in range(count)]
    return some_index(names=names, labels=np.arange(count) % 2, columns={"image": column})


@pytest.mark.parametrize("count", [3, 3000])
def test_every_turned_bit_of_a_column_is_noticed_and_logged(
    tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "some.idx"
    save(spans_of(count), file)
    whole, opened = file.read_bytes(), open_saved(file)
    assert opened is not None
    column = opened.columns["image"]
    assert isinstance(column, SpanColumn)
    for array in (opened.labels, opened.names.data, column.file, column.offset, column.length):
        place = whole.index(array.tobytes())
        for byte in (0, array.nbytes // 2, array.nbytes - 1):
            damaged = bytearray(whole)
            damaged[place + byte] ^= 16
            file.write_bytes(damaged)
            caplog.clear()
            assert open_saved(file) is None
            (line,) = caplog.messages
            assert str(file) in line and "made again" in line


def test_every_turned_bit_of_the_header_is_noticed(tmp_path: Path) -> None:
    """Most of them leave it JSON: a class has another name, or the fingerprint is another one."""
    file = tmp_path / "some.idx"
    save(some_index(), file)
    whole = file.read_bytes()
    start = len(table_file._MAGIC) + 16
    for place in range(start - 16, start + int.from_bytes(whole[start - 16 : start - 8], "little")):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert open_saved(file) is None, f"byte {place}: {whole[place : place + 1]!r}"
    file.write_bytes(whole)
    assert open_saved(file) is not None


def test_an_index_of_another_version_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(some_index(), tmp_path / "some.idx")
    data = (tmp_path / "some.idx").read_bytes()
    (tmp_path / "some.idx").write_bytes(data.replace(table_file._MAGIC, b"gpupipe-index-3\n"))
    assert open_saved(tmp_path / "some.idx") is None
    assert not caplog.messages


@pytest.mark.parametrize(
    "index",
    [
        some_index(labels=np.array([0, 1, 2])),
        some_index(labels=np.array([0, -1, 1])),
        spans_of(3, file=np.array([0, 1, 2], np.int32)),
        spans_of(3, offset=np.array([0, -1, 2])),
        spans_of(3, length=np.array([0, 1, -2])),
    ],
)
def test_no_column_refers_to_what_is_not_there(tmp_path: Path, index: Index) -> None:
    save(index, tmp_path / "some.idx")
    assert open_saved(tmp_path / "some.idx") is None


def test_no_file_is_no_index(tmp_path: Path) -> None:
    assert open_saved(tmp_path / "none.idx") is None
    assert open_saved(tmp_path) is None


def test_an_index_in_use_survives_a_new_one_in_its_place(tmp_path: Path) -> None:
    save(some_index(), tmp_path / "some.idx")
    held = open_saved(tmp_path / "some.idx")
    assert held is not None
    save(some_index(names=["c/9.jpg"], labels=np.array([0]), classes=["c"]), tmp_path / "some.idx")
    assert held.location(2) == "/images/b/3.jpg"


def test_the_fingerprint_is_of_paths_labels_and_classes_but_not_of_the_root() -> None:
    plain = some_index().fingerprint
    assert some_index().fingerprint == plain
    assert some_index(root="/elsewhere").fingerprint == plain
    assert some_index(extra={"times": {"": 2}}).fingerprint == plain
    others = [
        some_index(names=["a/1.jpg", "b/2.jpg", "b/4.jpg"]),
        some_index(names=["a/1.jpg", "b/3.jpg", "b/2.jpg"]),
        some_index(names=["a/1.jpgb", "/2.jpg", "b/3.jpg"]),
        some_index(names=["a/1.jpg", "b/2.jpg"], labels=np.array([0, 1])),
        some_index(labels=np.array([0, 0, 1])),
        some_index(classes=["a", "c"]),
        some_index(classes=["a", "b", "c"]),
    ]
    assert len({plain, *(index.fingerprint for index in others)}) == len(others) + 1


def labelled(header: dict[str, Any], dtype: str, shape: object) -> dict[str, Any]:
    """Return the header with another dtype and shape of the labels, and their checksum as it is."""
    arrays = header["arrays"]
    return header | {"arrays": arrays | {"labels": [dtype, shape, arrays["labels"][2]]}}


def valued(header: dict[str, Any], **values: object) -> dict[str, Any]:
    """Return the header with other values of the index's fields."""
    return header | {"value": header["value"] | values}


HEADERS = {
    "no object": lambda header: [1, 2],
    "no arrays": lambda header: {k: v for k, v in header.items() if k != "arrays"},
    "arrays no object": lambda header: header | {"arrays": 3},
    "a column missing": lambda header: (
        header | {"arrays": {k: v for k, v in header["arrays"].items() if k != "names.offsets"}}
    ),
    "objects": lambda header: (
        header | {"arrays": header["arrays"] | {"names.data": ["|O", [10], 0]}}
    ),
    "floats": lambda header: labelled(header, "<f8", header["arrays"]["labels"][1]),
    "a negative length": lambda header: labelled(header, "<i8", [-1]),
    "a length in words": lambda header: labelled(header, "<i8", "many"),
    "no length": lambda header: labelled(header, "<i8", None),
    "beyond the end": lambda header: labelled(header, "<i8", [10**6]),
    "beyond all memory": lambda header: labelled(header, "<i8", [10**40]),
    "fewer labels than names": lambda header: labelled(header, "<i8", [1]),
    "a length for all": lambda header: labelled(header, "<i8", 3),
    "no value": lambda header: {"arrays": header["arrays"]},
    "no columns": lambda header: valued(header, columns={}),
    "columns no object": lambda header: valued(header, columns=[]),
    "a column of another kind": lambda header: valued(
        header, columns={"image": {"class": "SpanColumn", "root": "/images", "array": None}}
    ),
    "a column's root a number": lambda header: valued(
        header, columns={"image": {"class": "FileColumn", "root": 1, "paths": {"same": "names"}}}
    ),
    "root a number": lambda header: valued(header, root=1),
    "no root": lambda header: (
        header | {"value": {k: v for k, v in header["value"].items() if k != "root"}}
    ),
    "classes a number": lambda header: valued(header, classes=1),
    "extra a list": lambda header: valued(header, extra=[]),
}


@pytest.mark.parametrize("change", HEADERS)
def test_a_foreign_header_is_no_index(tmp_path: Path, change: str) -> None:
    save(some_index(), tmp_path / "some.idx")
    rewrite(tmp_path / "some.idx", lambda header: header)
    assert open_saved(tmp_path / "some.idx") is not None, "the rewriting itself does no harm"
    rewrite(tmp_path / "some.idx", HEADERS[change])
    assert open_saved(tmp_path / "some.idx") is None


def rewrite(file: Path, change: object) -> None:
    """Give an index file another header."""
    data, start, place = file.read_bytes(), 32, table_file._ALIGNMENT
    end = start + int.from_bytes(data[16:24], "little")
    text = json.dumps(change(json.loads(data[start:end]))).encode()  # type: ignore[operator]
    columns = data[end + -end % place :]
    numbers = [len(text), zlib.crc32(text)]
    header = data[:16] + b"".join(number.to_bytes(8, "little") for number in numbers) + text
    file.write_bytes(header + bytes(-len(header) % place) + columns)
