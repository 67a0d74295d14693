"""What must hold for every input of every parser of fuzz.py.

A parser here takes (bytes of libFuzzer, a file that it may write), and raises DataError if gpupipe
refuses the input. Anything else that it raises is a finding.
"""

import contextlib
import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(
    include=[
        "gpupipe.formats",
        "gpupipe.sources",
        "gpupipe.dataset.shards",
        "gpupipe.dataset.labels",
    ]
):
    from gpupipe.dataset.file_columns import SpanColumn
    from gpupipe.dataset.index import Index
    from gpupipe.dataset.shards import join_shards
    from gpupipe.errors import DataError
    from gpupipe.formats import lmdb_keys, npy, tar, zip_directory
    from gpupipe.sources.file_list import FileList
    from gpupipe.sources.recordio import Recordio
    from gpupipe.sources.tfrecord import Tfrecord
    from gpupipe.sources.webdataset import Webdataset

from crc32c import crc32c
from google.protobuf.message import DecodeError
from tfrecord import example_pb2


def webdataset(data: bytes, file: Path) -> None:
    """The first byte says whether the checksums of all blocks are mended, so that what is behind
    them is reached.
    """
    content = _with_checksums(data[1:]) if data[:1] > b"\x7f" else data[1:]
    file.write_bytes(content)
    source = Webdataset(
        shards=str(file),
        label="cls",
        fields={"image": "jpg", "depth": "npy"} if data[:1] > b"\xbf" else {"image": "jpg"},
        values={"v": "json:v"},
    )
    _check_spans(join_shards([file], [source.read(file)], ""), len(content))


def members(data: bytes, file: Path) -> None:
    """What is taken is what tarfile finds, up to where tarfile stops without a word: at a header
    that it cannot read.
    """
    content = _with_checksums(data)
    every = _refusing(lambda: list(tar.iter_members(np.frombuffer(content, np.uint8))))
    found = [(m.name, m.offset, m.size) for m in every if not m.name.endswith("/")]
    with (
        contextlib.suppress(tarfile.TarError),
        tarfile.open(fileobj=io.BytesIO(content), mode="r:") as judge,
    ):
        expected = [
            (m.name, m.offset_data, m.size)
            for m in judge
            if not m.isdir() and not m.name.endswith("/")
        ]
        for ours, theirs in zip(
            found, expected, strict=False
        ):  # tarfile puts a prefix before the names of tars that have none, too
            assert ours[1:] == theirs[1:] and theirs[0].endswith(ours[0]), (ours, theirs)
        assert len(expected) <= len(found)


def tfrecord(data: bytes, file: Path) -> None:
    """One record in a whole frame, or a file as it is; where features are found, protobuf finds
    them too.
    """
    raw = data[:1] > b"\xdf"
    content = data[1:] if raw else frame(data[1:])
    file.write_bytes(content)
    values = {"v": "v"} if data[:1] > b"\x7f" else {}
    source = Tfrecord(
        shards=str(file),
        label="l",
        fields={"image": "i", "a": {"feature": "f", "shape": [2]}} if values else {"image": "i"},
        values=values,
    )
    index = join_shards([file], [source.read(file)], "")
    _check_spans(index, len(content))
    if not raw:
        with contextlib.suppress(DecodeError):  # a key that is no UTF-8, for instance
            features = example_pb2.Example.FromString(data[1:]).features.feature
            assert features["i"].bytes_list.value == [index.read(0).tobytes()]
            assert not values or np.array_equal(
                _numbers(features["v"]), np.atleast_1d(index.values["v"][0]), equal_nan=True
            )


def recordio(data: bytes, file: Path) -> None:
    file.write_bytes(data[1:])
    index = join_shards(
        [file],
        [
            Recordio(
                shards=str(file),
                label=0,
                values={"v": [0, 1]},
                empty="skip" if data[:1] > b"\x7f" else "raise",
            ).read(file)
        ],
        "",
    )
    _check_spans(index, None)
    for whole in file.parent.rglob("*.parts"):
        whole.unlink()


def npy_header(data: bytes, file: Path) -> None:
    found = _refusing(lambda: npy.parse_header(data))
    judge = (
        np.lib.format.read_array(io.BytesIO(data + bytes(found.length)), allow_pickle=False)
        if found.length < 1 << 20
        else None
    )
    assert judge is None or (judge.dtype.name, judge.shape) == (found.dtype, found.shape)


def manifest(data: bytes, file: Path, suffixes: tuple[str, ...] = (".txt", ".csv", ".tsv")) -> None:
    file = file.with_suffix(suffixes[data[0] % len(suffixes)] if data else suffixes[0])
    file.write_bytes(data[1:])
    options: dict[str, Any] = (
        {}
        if file.suffix == ".txt" or data[0] < 128
        else {"fields": {"mask": "mask"}, "values": ["x"]}
    )
    index = (
        FileList(file=file, label=None if data[:1] == b"\x07" else "label", **options).index()
        if file.suffix != ".txt"
        else FileList(file=file).index()
    )
    for name in index.columns:
        for i in range(len(index)):
            assert os.path.normpath(index.columns[name].span(i).path).startswith(f"{file.parent}/")


def parquet(data: bytes, file: Path) -> None:
    manifest(b"\0" + data, file, (".parquet",))


def zip_members(data: bytes, file: Path) -> None:
    """What is taken lies in the file, and is what zipfile finds where zipfile takes it."""
    content = np.frombuffer(data, np.uint8)
    found = _refusing(lambda: _read_zip(content))
    with contextlib.suppress(*_ZIPFILE_ERRORS), zipfile.ZipFile(io.BytesIO(data)) as judge:
        theirs = [info for info in judge.infolist() if not info.orig_filename.endswith("/")]
        for info, (member, ours) in zip(theirs, found, strict=True):
            assert (info.file_size, info.CRC) == (member.size, member.crc), info
            if ours is not None and info.file_size < 1 << 20:
                with contextlib.suppress(*_ZIPFILE_ERRORS):
                    assert judge.read(info) == ours, info


def lmdb_values(data: bytes, file: Path) -> None:
    """The first byte says whether a database is named."""
    content = np.frombuffer(data[1:], np.uint8)
    name = "b" if data[:1] > b"\x7f" else None
    try:
        for value in lmdb_keys.iter_values(content, name):
            assert 0 <= value.offset <= value.offset + value.length <= len(content)
    except (ValueError, LookupError) as e:
        raise DataError(str(e)) from e


def _read_zip(content: np.ndarray[Any, Any]) -> list[tuple[Any, bytes | None]]:
    """Return every member with its content; None if its CRC or its stream is wrong."""
    found: list[tuple[Any, bytes | None]] = []
    for member in zip_directory.iter_members(content):
        begin = zip_directory.locate(content, member)
        stored = content[begin : begin + member.stored_size]
        assert begin >= 0 and len(stored) == member.stored_size
        try:
            whole = zip_directory.inflate(stored, member.size) if member.is_deflated else stored
            zip_directory.check_crc(whole, member.crc)
            found.append((member, whole.tobytes()))
        except ValueError:
            found.append((member, None))
    return found


_ZIPFILE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    IndexError,
)


def every(data: bytes, file: Path) -> None:
    """The first byte chooses the parser."""
    parsers = [parse for parse in PARSERS.values() if parse is not every]
    parsers[data[0] % len(parsers) if data else 0](data[1:], file)


PARSERS: dict[str, Callable[[bytes, Path], None]] = {
    "webdataset": webdataset,
    "tar": members,
    "tfrecord": tfrecord,
    "recordio": recordio,
    "npy": npy_header,
    "manifest": manifest,
    "parquet": parquet,
    "zip": zip_members,
    "lmdb": lmdb_values,
    "all": every,
}


def _refusing(parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except ValueError as e:
        raise DataError(str(e)) from e


def _check_spans(index: Index, size: int | None) -> None:
    for name, column in index.columns.items():
        assert isinstance(column, SpanColumn)
        for i in range(len(index)):
            span = index.columns[name].span(i)
            assert span.length is not None
            assert span.offset >= 0
            assert span.offset + span.length <= (
                size if size is not None else Path(span.path).stat().st_size
            )


def _numbers(feature: Any) -> list[float]:
    return list(feature.int64_list.value) or np.array(feature.float_list.value, np.float32).tolist()


def frame(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked_crc(length) + record + masked_crc(record)


def masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _with_checksums(content: bytes) -> bytes:
    """With the right checksum in every block of a tar that says that it is a header."""
    out = bytearray(content)
    for at in range(0, len(out) - 511, 512):
        if out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b"        "
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return bytes(out)
