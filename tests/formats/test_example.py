"""Every form of a tf.train.Example that the wire format allows."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tfrecord import example_pb2

from gpupipe.formats import framing
from gpupipe.formats.example import parse_features
from gpupipe.sources.tfrecord import Tfrecord
from helpers.tfrecords import FLOATS, entry, field, framed, images, record, varint, written


def test_many_records_are_found_in_their_order(tmp_path: Path) -> None:
    """More than are walked at once."""
    contents = [str(n).encode() * (n % 7) for n in range(10_000)]
    index = written(tmp_path / "many", *map(record, map(images, contents))).index()
    assert len(index) == 10_000
    for n in (0, 1, 4095, 4096, 8191, 8192, 9999):
        assert index.read(n).tobytes() == contents[n]
        assert index.location(n).endswith(f"many:{n}")


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
    (records,) = framing.iter_records(data, verify=True)
    assert parse_features(data, records, ["i"])["i"].numbers(data).reshape(
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
    (records,) = framing.iter_records(data)
    spans = parse_features(data, records, ["wanted"])["wanted"].spans()
    assert [data[b:e].tobytes() for b, e in zip(spans.begin, spans.end, strict=True)] == [
        content
    ] * len(maps)
