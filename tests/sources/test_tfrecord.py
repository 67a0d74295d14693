"""tfrecord: files that TensorFlow and the package tfrecord wrote, records in every form that the
wire format allows, and broken ones.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crc32c import crc32c
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tfrecord import TFRecordWriter, example_pb2

import gpupipe
from gpupipe.formats import framing, protobuf
from gpupipe.formats.example import features
from gpupipe.formats.protobuf import Messages
from gpupipe.sources.tfrecord import Tfrecord
from gpupipe.testing import check_loader

RECORDS = Path(__file__).parents[1] / "data" / "records"
TOLD = json.loads((RECORDS / "records.json").read_text())
REAL = RECORDS / "tensorflow.tfrecord"
STEPS = ["decode", {"resize": {"size": [20, 20]}}]
ENGINES: list[dict[str, Any]] = [{"engine": "dali"}, {"engine": "dataloader", "workers": 0}]


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(*records: bytes) -> bytes:
    lengths = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(
        length + masked(length) + record + masked(record)
        for length, record in zip(lengths, records, strict=True)
    )


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, in the wire format."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(n: int) -> bytes:
    n &= 2**64 - 1
    return bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80]) + varint(n >> 7)


def entry(name: str, feature: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, feature))


def record(*entries: bytes) -> bytes:
    return field(1, b"".join(entries))


def images(content: bytes) -> bytes:
    return entry("image/encoded", field(1, field(1, content)))


def written(path: Path, *records: bytes) -> Tfrecord:
    path.write_bytes(framed(*records))
    return Tfrecord(shards=str(path), label=None)


# --- what the real writers make


def test_tensorflows_own_file() -> None:
    source = Tfrecord(
        shards=str(REAL),
        verify=True,
        values={"ints": "ints", "floats": "floats", "weight": "weight"},
        fields={
            "image": "image/encoded",
            "depth": {"feature": "floats", "shape": [1, 1, 3]},
            "raw": {"feature": "raw", "shape": [3], "dtype": "int32"},
        },
    )
    index = source.index()
    assert [hashlib.blake2b(index.read(i)).hexdigest() for i in range(6)] == [
        told["image"] for told in TOLD
    ]
    assert index.labels.tolist() == [told["label"] for told in TOLD]
    assert index.classes == ["0", "1", "2"]
    for name in ("ints", "weight"):
        assert index.values[name].tolist() == [told[name] for told in TOLD]
    assert (
        index.values["floats"].tolist()
        == np.array([told["floats"] for told in TOLD], np.float32).tolist()
    )
    assert (
        index.read(4, "depth").view(np.float32).tolist()
        == np.array(TOLD[4]["floats"], np.float32).tolist()
    )
    assert index.read(4, "raw").tolist() == list(range(4, 16))
    assert index.location(4) == f"{REAL}:4"
    depth, raw = (index.columns[name].array for name in ("depth", "raw"))
    assert depth is not None
    assert raw is not None
    assert (depth.dtype, depth.shape, raw.dtype, raw.shape) == ("float32", (1, 1, 3), "int32", (3,))


def test_names_are_labels_too() -> None:
    index = Tfrecord(shards=str(REAL), label="image/class/text").index()
    assert [index.classes[n] for n in index.labels] == [told["name"] for told in TOLD]


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_batches_hold_what_the_files_hold(options: dict[str, Any]) -> None:
    data = {"source": "tfrecord", "shards": REAL, "values": {"weight": "weight"}}
    data["fields"] = {"image": "image/encoded", "depth": {"feature": "floats", "shape": [1, 1, 3]}}
    with gpupipe.load(
        {"data": data, "pipeline": STEPS}, device="cpu", ids=True, batch_size=4, **options
    ) as loader:
        for batch in loader:
            ids = batch["id"].tolist()
            assert batch["image"].shape[1:] == (3, 20, 20)
            assert batch["label"].tolist() == [TOLD[i]["label"] for i in ids]
            assert batch["weight"].tolist() == [TOLD[i]["weight"] for i in ids]
            assert torch.equal(
                batch["depth"].flatten(1), torch.tensor([TOLD[i]["floats"] for i in ids])
            )


@pytest.fixture(scope="module")
def shards(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The faces, in the folder source's order and with its labels, 20 in each of 3 shards of the
    package tfrecord.
    """
    folder = tmp_path_factory.mktemp("tfrecords")
    classes = sorted(p.name for p in faces.iterdir() if p.is_dir())
    files = sorted(faces.glob("*/*.jpg"))
    for n in range(3):
        writer = TFRecordWriter(str(folder / f"faces-{n:03}"))
        for file in files[20 * n : 20 * n + 20]:
            writer.write(
                {
                    "image/encoded": (file.read_bytes(), "byte"),
                    "image/class/label": (classes.index(file.parent.name), "int"),
                }
            )
        writer.close()
    return folder


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_samples_labels_and_pixels_are_those_of_the_folder(
    faces: Path, shards: Path, options: dict[str, Any]
) -> None:
    config = {
        "data": {"source": "folder", "root": faces},
        "pipeline": ["decode", {"random_crop": {"size": 100}}],
    }
    other = config | {"data": {"source": "tfrecord", "shards": f"{shards}/faces-{{000..002}}"}}
    with (
        gpupipe.load(other, device="cpu", ids=True, **options) as found,
        gpupipe.load(config, device="cpu", ids=True, **options) as expected,
    ):
        for a, b in zip(found, expected, strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_contract_holds(shards: Path) -> None:
    config = {
        "data": {"source": "tfrecord", "shards": f"{shards}/faces-001"},
        "pipeline": ["decode", {"random_crop": {"size": 100}}],
    }
    check_loader(lambda **changes: gpupipe.load(config, device="cpu", engine="dali", **changes))


# --- every form that the wire format allows


def test_many_records_are_found_in_their_order(tmp_path: Path) -> None:
    """More than are walked at once."""
    contents = [str(n).encode() * (n % 7) for n in range(10_000)]
    index = written(tmp_path / "many", *map(record, map(images, contents))).index()
    assert len(index) == 10_000
    for n in (0, 1, 4095, 4096, 8191, 8192, 9999):
        assert index.read(n).tobytes() == contents[n]
        assert index.location(n).endswith(f"many:{n}")


FLOATS = np.array([1.5, -2.0], "<f4").tobytes()


def test_unknown_fields_order_and_parts_do_not_matter(tmp_path: Path) -> None:
    unknown = (
        varint(9 << 3)
        + varint(77)
        + varint(10 << 3 | 1)
        + bytes(8)
        + varint(11 << 3 | 5)
        + bytes(4)
        + field(12, b"xyz")
    )
    other = entry("other", field(1, field(1, b"o")))
    plain = record(images(b"one"), other)
    turned = record(other, images(b"one"))
    with_unknown = unknown + field(
        1,
        unknown
        + field(
            1,
            unknown
            + field(2, unknown + field(1, unknown + field(1, b"one")))
            + field(1, b"image/encoded"),
        ),
    )
    in_two_parts = record(other) + record(images(b"one"))
    of_another_type = record(
        entry("image/encoded", varint(2 << 3) + varint(5) + field(1, field(1, b"one")))
    )
    index = written(
        tmp_path / "a", plain, turned, with_unknown, in_two_parts, of_another_type
    ).index()
    assert [index.read(i).tobytes() for i in range(5)] == [b"one"] * 5


def test_lists_packed_and_not(tmp_path: Path) -> None:
    one = varint(1 << 3 | 5) + FLOATS[:4]
    ints = [
        field(1, varint(5) + varint(-1)),
        varint(1 << 3) + varint(5) + varint(1 << 3) + varint(-1),
        field(1, varint(5)) + varint(1 << 3) + varint(-1),
    ]
    records = [
        record(
            images(b"x"),
            entry("f", field(2, field(1, FLOATS[:4]) if n else one)),
            entry("i", field(3, i)),
        )
        for n, i in enumerate(ints)
    ]
    written(tmp_path / "a", *records)
    index = Tfrecord(
        shards=str(tmp_path / "a"),
        label=None,
        values={"f": "f", "i": "i"},
        fields={"a": {"feature": "f", "shape": [1]}},
    ).index()
    assert index.values["i"].tolist() == [[5, -1]] * 3
    assert index.values["f"].tolist() == [1.5] * 3
    assert [index.read(n).view("<f4").tolist() for n in range(3)] == [[1.5]] * 3


def test_the_order_of_many_values_is_kept(tmp_path: Path) -> None:
    unpacked = b"".join(varint(1 << 3) + varint(n * 999) for n in range(100))
    written(tmp_path / "a", *[record(images(b"x"), entry("i", field(3, unpacked)))] * 50)
    index = Tfrecord(shards=str(tmp_path / "a"), label=None, values={"i": "i"}).index()
    assert index.values["i"].tolist() == [[n * 999 for n in range(100)]] * 50


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), min_size=1, max_size=4
    )
)
def test_int64s_are_what_protobuf_reads(lists: list[list[int]]) -> None:
    width = min(map(len, lists))
    texts = [
        example_pb2.Example(
            features=example_pb2.Features(
                feature={
                    "i": example_pb2.Feature(int64_list=example_pb2.Int64List(value=n[:width]))
                }
            )
        ).SerializeToString()
        for n in lists
    ]
    data = np.frombuffer(framed(*texts), np.uint8)
    (records,) = framing.records(data, verify=True)
    assert features(data, records, ["i"])["i"].numbers(data).reshape(
        len(lists), width
    ).tolist() == [n[:width] for n in lists]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.binary(max_size=300), max_size=5),
        min_size=1,
        max_size=5,
    ),
    st.binary(max_size=50),
)
@example([{}], b"")
def test_bytes_are_where_protobuf_finds_them(maps: list[dict[str, bytes]], content: bytes) -> None:
    def value(b: bytes) -> Any:
        return example_pb2.Feature(bytes_list=example_pb2.BytesList(value=[b]))

    texts = [
        example_pb2.Example(
            features=example_pb2.Features(
                feature={k: value(v) for k, v in (m | {"wanted": content}).items()}
            )
        ).SerializeToString()
        for m in maps
    ]
    data = np.frombuffer(framed(*texts), np.uint8)
    (records,) = framing.records(data)
    spans = features(data, records, ["wanted"])["wanted"].spans()
    assert [data[b:e].tobytes() for b, e in zip(spans.begin, spans.end, strict=True)] == [
        content
    ] * len(maps)


# --- what is refused

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
        match=r"needs crc32c: run 'pip install gpupipe\[tfrecord\]', or leave out data.verify",
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
    found = protobuf.fields(data, Messages(np.arange(3), np.array([0, 3, 3]), np.array([3, 3, 12])))
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
