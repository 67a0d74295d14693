"""The inputs that fuzz.py begins with: small valid files of every format, and some odd ones."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from parser_laws import PARSERS, frame
from tfrecord import example_pb2

RECORDS = Path(__file__).parents[1] / "data" / "records"


def iter_seeds(parser: str) -> Iterator[bytes]:
    if parser == "all":
        yield from (
            bytes([n]) + seed
            for n, one in enumerate(p for p in PARSERS if p != "all")
            for seed in iter_seeds(one)
        )
    elif parser in ("webdataset", "tar"):
        first = [b""] if parser == "tar" else [b"\0", b"\x80", b"\xff"]
        yield from (
            f + _tar(format)
            for f in first
            for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
        )
    elif parser == "tfrecord":
        for mode in (b"\0", b"\x80"):
            yield mode + _example()
        yield b"\xff" + frame(_example()) * 2
    elif parser == "recordio":
        yield from (
            mode + (RECORDS / f"{name}.rec").read_bytes()[:1500]
            for name in ("labels", "numbers", "parts")
            for mode in (b"\0", b"\xff")
        )
        yield b"\0" + struct.pack("<IIIfQQ", 0xCED7230A, 28, 0, 1, 0, 0) + b"abcd"
        yield (
            b"\0"
            + struct.pack("<IIIfQQ", 0xCED7230A, 1 << 29 | 24, 0, 1, 0, 0)
            + struct.pack("<II", 0xCED7230A, 3 << 29 | 2)
            + b"ab\0\0"
        )
    elif parser == "npy":
        yield from map(
            _npy,
            (
                np.zeros((2, 3), "f4"),
                np.zeros(3, ">i8"),
                np.zeros((2, 2), order="F"),
                np.zeros((), bool),
                np.zeros(2, [("a", "f4")]),
            ),
        )
    elif parser == "zip":
        yield from (_zip(method, comment) for method in (0, 8) for comment in (b"", b"PK"))
        yield b"before" + _zip(8, b"")
    else:
        yield from _manifests(parser)


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _tar(format: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as file:
        for name, content in (
            ("a.jpg", b"x"),
            ("a.cls", b"1"),
            ("a.json", b'{"v": [1, 2]}'),
            ("a.npy", _npy(np.zeros(2, "f4"))),
            (f"{'b' * 90}/{'c' * 90}.jpg", b""),
        ):
            info = tarfile.TarInfo(name)
            # as WebDataset's writer has it
            info.size, info.mtime = len(content), 1.5 if format == tarfile.PAX_FORMAT else 1
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()[:6144] + bytes(1024)


def _zip(method: int, comment: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.comment = comment
        for name, content in (("a/1.jpg", b"x" * 50), ("d/", b""), ("\xe4.jpg", b"")):
            file.writestr(name, content)
        with file.open(zipfile.ZipInfo("64"), "w", force_zip64=True) as member:
            member.write(b"content")
    return out.getvalue()


def _example() -> bytes:
    lists = {
        "i": {"bytes_list": {"value": [b"xyz"]}},
        "l": {"int64_list": {"value": [3]}},
        "f": {"float_list": {"value": [1.5, 2]}},
        "v": {"int64_list": {"value": [-1, 300]}},
    }
    features = {
        key: example_pb2.Feature(**{kind: getattr(example_pb2, _LISTS[kind])(**of)})
        for key, told in lists.items()
        for kind, of in told.items()
    }
    content: bytes = example_pb2.Example(
        features=example_pb2.Features(feature=features)
    ).SerializeToString()
    return content


_LISTS = {"bytes_list": "BytesList", "int64_list": "Int64List", "float_list": "FloatList"}


def _manifests(parser: str) -> Iterator[bytes]:
    if parser == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        out = io.BytesIO()
        pq.write_table(
            pa.table({"path": ["a", "../b"], "label": [1, 2], "mask": ["c", "d"], "x": [0.5, 2.0]}),
            out,
        )
        yield out.getvalue()
        return
    yield b"\0" + b"# c\na/b.jpg 3\nc d.jpg\t4\n"
    yield b"\x01" + b'path,label\na,1\n"b,c",2\n'
    yield b"\x82" + b"path\tlabel\tmask\tx\na\tcat\tm/a\t1.5\n../b\tdog\tm/b\t2\n"
    yield b"\x80" + b"path,label,mask,x\n/etc/passwd,1,./a/../b,1e5\n"
