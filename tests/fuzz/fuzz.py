"""Fuzz a parser with atheris: python tests/fuzz/fuzz.py PARSER --seconds 600. Ends with status 0
where nothing was found.

Every input must be taken or refused by a DataError: no other exception, no ten seconds of work, no
gigabyte of memory, no span outside the file, no path outside the folder. What TFRecords say is
compared with what protobuf reads, and the members of a tar with what tarfile finds.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(
    include=[
        "gpupipe.formats",
        "gpupipe.sources",
        "gpupipe.dataset.shard_index",
        "gpupipe.dataset.labels",
    ]
):
    from gpupipe.dataset import labels
    from gpupipe.dataset.columns import SpanColumn
    from gpupipe.dataset.index import Index
    from gpupipe.dataset.shard_index import join_shards
    from gpupipe.errors import DataError
    from gpupipe.formats import npy, tar
    from gpupipe.sources.file_list import FileList
    from gpupipe.sources.recordio import Recordio
    from gpupipe.sources.tfrecord import Tfrecord
    from gpupipe.sources.webdataset import Webdataset

from crc32c import crc32c
from google.protobuf.message import DecodeError
from tfrecord import example_pb2

RECORDS = Path(__file__).parents[1] / "data" / "records"
_MEMORY = 4 << 30
_SECONDS_AN_INPUT = 10
_SECONDS_A_PROCESS = 60
_SECONDS_TOO_LONG = 45


# --- what an input is, and what must hold


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
    content = data[1:] if raw else _framed(data[1:])
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


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + _masked(length) + record + _masked(record)


def _masked(data: bytes) -> bytes:
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


# --- inputs to begin with


def _seeds(parser: str) -> Iterator[bytes]:
    if parser == "all":
        yield from (
            bytes([n]) + seed
            for n, one in enumerate(p for p in PARSERS if p != "all")
            for seed in _seeds(one)
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
        yield b"\xff" + _framed(_example()) * 2
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


# --- running


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("parser", choices=PARSERS)
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument(
        "--corpus",
        type=Path,
        help="folder for inputs that reach new code, kept from run to run (default: a temporary "
        "one)",
    )
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.folder:
        _fuzz(arguments.parser, arguments.seconds, arguments.corpus, arguments.folder)
        return 0
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        return _in_processes(
            arguments.parser, arguments.seconds, arguments.corpus or Path(folder) / "corpus", folder
        )


def _in_processes(parser: str, seconds: int, corpus: Path, folder: str) -> int:
    """Fuzz in one process behind another, as atheris never gives back what it remembers of
    comparisons of arrays: 20 kB an input. Returns the status.
    """
    corpus.mkdir(parents=True, exist_ok=True)
    for n, seed in enumerate(_seeds(parser)):
        (corpus / f"seed-{n}").write_bytes(seed)
    counts: Counter[str] = Counter()
    for start in range(0, seconds, _SECONDS_A_PROCESS):
        wanted = min(_SECONDS_A_PROCESS, seconds - start)
        command = [
            sys.executable,
            __file__,
            parser,
            "--seconds",
            str(wanted),
            "--corpus",
            str(corpus),
            "--folder",
            folder,
        ]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"GPUPIPE_CACHE": folder},
        )
        if done.returncode:
            return done.returncode
        counts.update(json.loads(done.stdout.splitlines()[-1]))
    print(json.dumps({"parser": parser, **counts}))
    return 0


def _fuzz(parser: str, seconds: int, corpus: Path, folder: Path) -> None:
    counts, ends = {"taken": 0, "refused": 0}, [time.monotonic() + seconds - 1]

    def one(data: bytes) -> None:
        try:
            PARSERS[parser](data, folder / "input")
            counts["taken"] += 1
        except DataError:
            counts["refused"] += 1
        if ends and ends[0] < time.monotonic():  # libFuzzer ends the process without another word
            ends.clear()
            print(json.dumps(counts), flush=True)

    # a label of ten millions is taken, and takes seconds for the names of as many classes
    labels.MOST_CLASSES = 100_000
    faulthandler.dump_traceback_later(
        seconds + _SECONDS_TOO_LONG, exit=True
    )  # where it hangs, also where libFuzzer's own alarm does not get through
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    libfuzzer = [
        f"-max_total_time={seconds}",
        f"-timeout={_SECONDS_AN_INPUT}",
        "-rss_limit_mb=3000",
        "-max_len=8192",
        f"-artifact_prefix={corpus}/",
    ]
    atheris.Setup([sys.argv[0], *libfuzzer, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
