"""The inputs that fuzz.py begins with: small valid files of every format, and some odd ones."""

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
    elif parser == "lmdb":
        yield b"\0" + _lmdb(512)
        yield b"\xff" + _lmdb(1024)
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


def _lmdb(size: int) -> bytes:
    """A tree of a branch and two leaves; in them a small value, one of two pages, a database."""

    def tree(entries: int, root: int) -> bytes:
        return struct.pack("<LHH5Q", size, 0, 1, 0, 1, 1, entries, root)

    def page(number: int, flags: int, *nodes: bytes) -> bytes:
        ends = size - np.cumsum([len(node) for node in nodes], dtype=int)
        places = struct.pack(f"<{len(nodes)}H", *ends)
        head = struct.pack("<QHHHH", number, 0, flags, 16 + len(places), int(min(ends))) + places
        return head + bytes(size - len(head) - sum(map(len, nodes))) + b"".join(nodes[::-1])

    def node(key: bytes, low: int, flags: int, value: bytes = b"") -> bytes:
        return struct.pack("<HHHH", low, 0, flags, len(key)) + key + value

    def meta(number: int) -> bytes:
        told = struct.pack("<QHHL", number, 0, 8, 0) + struct.pack("<LLQQ", 0xBEEFC0DE, 1, 0, 1)
        return (told + tree(0, 2**64 - 1) + tree(3, 2) + struct.pack("<QQ", 6, number)).ljust(
            size, b"\0"
        )

    long = (struct.pack("<QHHL", 5, 0, 4, 2) + b"v" * (size + 100)).ljust(2 * size, b"\0")
    leaves = (
        page(3, 2, node(b"a", 3, 0, b"xyz"), node(b"b", 48, 2, tree(1, 7))),
        page(4, 2, node(b"c", size + 100, 1, struct.pack("<Q", 5))),
    )
    inner = page(7, 2, node(b"d", 1, 0, b"w"))
    branch = page(2, 1, node(b"", 3, 0), node(b"c", 4, 0))
    return b"".join([meta(0), meta(1), branch, *leaves, long, inner])


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
