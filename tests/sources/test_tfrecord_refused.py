"""TFRecord files and options that are refused, and what the messages name."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe
from gpupipe.formats import protobuf
from gpupipe.formats.protobuf import Messages
from gpupipe.runtime.installation import install_command
from gpupipe.sources.tfrecord import Tfrecord
from helpers.tfrecords import FLOATS, REAL, RECORDS, entry, field, framed, images, record, varint

X = images(b"x")


REFUSED: dict[str, tuple[list[bytes], dict[str, Any], str]] = {
    "no such feature": (
        [record(entry("image/encodd", b""))],
        {},
        r"record 0, byte 12: has no feature 'image/encoded'; did you mean 'image/encodd'\?",
    ),
    "a feature twice": (
        [record(X), record(X, X)],
        {},
        r"record 1, byte \d+: has the feature 'image/encoded' 2 times",
    ),
    "no value": (
        [record(entry("image/encoded", b""))],
        {},
        "the feature 'image/encoded' has no value",
    ),
    "two lists": (
        [record(entry("image/encoded", field(1, field(1, b"x")) + field(2, b"")))],
        {},
        "the feature 'image/encoded' has lists of several types",
    ),
    "two images": (
        [record(entry("image/encoded", field(1, field(1, b"x") * 2)))],
        {},
        "holds 2 values, but a field is one piece of bytes",
    ),
    "no image": (
        [record(entry("image/encoded", field(1, b"")))],
        {},
        "holds 0 values, but a field is one piece of bytes",
    ),
    "two keys": ([record(field(1, field(1, b"a") * 2))], {}, "a feature with two keys"),
    "two values": (
        [record(field(1, field(1, b"a") + field(2, b"") * 2))],
        {},
        "a feature with two values",
    ),
    "floats for an image": (
        [record(entry("image/encoded", field(2, field(1, FLOATS))))],
        {},
        "holds floats, and no image file: write {feature",
    ),
    "ints for an array": (
        [record(entry("a", field(3, field(1, b"\1"))))],
        {"fields": {"a": {"feature": "a", "shape": [1]}}},
        "holds int64s, which",
    ),
    "another shape": (
        [record(entry("a", field(2, field(1, FLOATS))))],
        {"fields": {"a": {"feature": "a", "shape": [3]}}},
        r"holds 8 bytes, but float32 of shape \[3\] has 12",
    ),
    "floats as int32": (
        [record(entry("a", field(2, field(1, FLOATS))))],
        {"fields": {"a": {"feature": "a", "shape": [2], "dtype": "int32"}}},
        "holds floats, which are float32, and not int32",
    ),
    "floats not packed": (
        [record(entry("a", field(2, (varint(1 << 3 | 5) + FLOATS[:4]) * 2)))],
        {"fields": {"a": {"feature": "a", "shape": [2]}}},
        "holds floats that are not packed",
    ),
    "half a float": (
        [record(entry("a", field(2, field(1, b"abc"))))],
        {"fields": {"a": {"feature": "a", "shape": [2]}}},
        "'a' ends within a float",
    ),
    "values of two lengths": (
        [record(X, entry("v", field(3, field(1, b"\1" * n)))) for n in (2, 3)],
        {"values": {"v": "v"}},
        "record 1, .*the feature 'v' holds 3 numbers, and 2 in the first record",
    ),
    "no values": (
        [record(X, entry("v", field(3, field(1, b""))))],
        {"values": {"v": "v"}},
        "holds 0 numbers",
    ),
    "too many values": (
        [record(X, entry("v", field(3, field(1, b"\1" * 5000))))],
        {"values": {"v": "v"}},
        "holds 5,000 bytes of numbers, more than",
    ),
    "bytes as values": (
        [record(X)],
        {"values": {"v": "image/encoded"}},
        "holds bytes, where numbers are wanted",
    ),
    "other types in other records": (
        [record(entry("image/encoded", field(n, field(1, FLOATS)))) for n in (1, 2)],
        {},
        "record 1, .*holds floats, but bytes in a record before it",
    ),
    "a negative label": (
        [record(X, entry("l", field(3, field(1, varint(-3)))))],
        {"label": "l"},
        "a:0: the label '-3' is negative",
    ),
    "a label of floats": (
        [record(X, entry("l", field(2, field(1, FLOATS[:4]))))],
        {"label": "l"},
        "holds floats, and no label",
    ),
    "two labels": (
        [record(X, entry("l", field(3, field(1, b"\1\2"))))],
        {"label": "l"},
        "holds 2 numbers, and no label",
    ),
    "a long name": (
        [record(X, entry("l", field(1, field(1, b"x" * 5000))))],
        {"label": "l"},
        "holds more than 4,096 bytes, which are no name",
    ),
    "a number cut off": (
        [record(X, entry("l", field(3, field(1, b"\x80"))))],
        {"label": "l"},
        "a number that ends past the list",
    ),
    "a number too long": (
        [record(X, entry("l", field(3, field(1, b"\x80" * 10 + b"\1"))))],
        {"label": "l"},
        "a number of more than 10 bytes",
    ),
    "no message": (
        [b"\x00" * 5],
        {},
        "record 0, byte 12: not a field of a Protocol Buffers message",
    ),
    "a group": ([b"\x0b"], {}, "not a field of a Protocol Buffers message"),
    "a field too long": ([b"\x0a\x7f"], {}, "a field that ends past the message that it is in"),
    "a length of 2^64 - 1": (
        [b"\x0a" + varint(-1)],
        {},
        "a field that ends past the message that it is in",
    ),
    "a varint without an end": ([b"\x80" * 20], {}, "not a field"),
    "more fields than are taken": ([b"\x48\x00" * 5000], {}, "a message of more than 4,096 fields"),
    "no records": ([], {}, "no sample in 1 shard: the files hold no records: set data.shards"),
}


@pytest.mark.parametrize(("records", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_records_that_are_refused(
    tmp_path: Path, records: list[bytes], options: dict[str, Any], said: str
) -> None:
    (tmp_path / "a").write_bytes(framed(*records))
    with pytest.raises(gpupipe.DataError, match=f"^{tmp_path}/(a: .*)?{said}"):
        Tfrecord(**{"shards": str(tmp_path / "a"), "label": None} | options).index()


def changed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


WHOLE = REAL.read_bytes()


DAMAGED = {
    "its length": (changed(WHOLE, 0), "the checksum of the length at byte 0 is wrong"),
    "the checksum of its length": (
        changed(WHOLE, 9),
        "the checksum of the length at byte 0 is wrong",
    ),
    "a length that leads out": (changed(WHOLE, 6), "the checksum of the length at byte 0 is wrong"),
    "cut off in a record": (
        WHOLE[:-20],
        "cut off: the record at byte [0-9,]+ ends 20 bytes past the file's end",
    ),
    "cut off in a head": (WHOLE + b"12345", "cut off at byte 8,527: 5 bytes are no record"),
    "text": (
        b"hello world, this is text\n" * 9,
        "the checksum of the length at byte 0 is wrong|cut off: the record at byte 0",
    ),
    "zeros": (
        bytes(1_000_000),
        "the checksum of the length at byte 0 is wrong.*or no TFRecord file",
    ),
    "gzip": ((RECORDS / "gzip.tfrecord").read_bytes(), "compressed with GZIP"),
}


@pytest.mark.parametrize(("content", "said"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_named_with_the_place(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(gpupipe.DataError, match=f"^{tmp_path}/d: ({said})"):
        Tfrecord(shards=str(tmp_path / "d")).index()


def test_a_damaged_record_is_found_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(
        changed(WHOLE, Tfrecord(shards=str(REAL)).index().columns["image"].span(5).offset + 500)
    )
    Tfrecord(shards=str(tmp_path / "d")).index()
    with pytest.raises(
        gpupipe.DataError,
        match=r"d: record 5, byte [\d,]+: the checksum is wrong: the record is damaged",
    ):
        Tfrecord(shards=str(tmp_path / "d"), verify=True).index()


def test_without_crc32c_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crc32c", None)
    assert len(Tfrecord(shards=str(REAL)).index()) == 6
    with pytest.raises(
        gpupipe.DataError,
        match=re.escape(
            f"needs crc32c: run {install_command('tfrecord')}, or leave out data.verify"
        ),
    ):
        Tfrecord(shards=str(REAL), verify=True).index()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fields": {"label": "a"}}, "'label' cannot be the name of a field or value"),
        ({"values": {"image": "a"}}, "'image' cannot be the name of a field or value"),
        ({"fields": {}}, "at least 1"),
        (
            {"fields": {"a": {"feature": "a", "shape": [2], "dtype": "flot32"}}},
            "a dtype is float16",
        ),
        ({"fields": {"a": {"feature": "a", "shape": [0]}}}, "at least 1"),
    ],
    ids=str,
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    config = {"data": {"source": "tfrecord", "shards": REAL, **options}, "pipeline": ["decode"]}
    with pytest.raises(gpupipe.ConfigError, match=said):
        gpupipe.load(config)


def test_what_is_only_in_some_messages(tmp_path: Path) -> None:
    """Messages are walked in step: the shorter ones must not hold up, or be mixed into, the
    longer.
    """
    data = np.frombuffer(
        b"".join([field(1, b"a"), b"", field(1, b"b") + field(2, b"c") + field(3, b"d")]), np.uint8
    )
    found = protobuf.parse_fields(
        data, Messages(np.arange(3), np.array([0, 3, 3]), np.array([3, 3, 12]))
    )
    assert [
        (int(m), int(n), data[b:e].tobytes())
        for m, n, b, e in zip(found.message, found.number, found.begin, found.end, strict=True)
    ] == [
        (0, 1, b"a"),
        (2, 1, b"b"),
        (2, 2, b"c"),
        (2, 3, b"d"),
    ]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_bytes_do_more_than_be_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Damage within records whose frame is whole, and in the frame."""
    place, noise = data.draw(st.integers(0, 300)), data.draw(st.binary(max_size=12))
    body = bytearray(record(images(b"x" * 40), entry("l", field(3, field(1, varint(2))))))
    body[place : place + len(noise)] = noise
    content = framed(bytes(body), record(images(b"y"), entry("l", field(3, field(1, b"\1")))))
    content = (
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    (tmp_path / "f").write_bytes(content)
    try:
        index = Tfrecord(shards=str(tmp_path / "f"), label="l", values={"v": "l"}).index()
    except gpupipe.DataError:
        return
    assert all(
        index.columns["image"].span(i).offset + (index.columns["image"].span(i).length or 0)
        <= len(content)
        for i in range(len(index))
    )
