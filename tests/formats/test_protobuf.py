"""Fields of Protocol Buffers messages, parsed for many messages at a time."""

import numpy as np
import pytest

from gpupipe.formats.protobuf import (
    Bytes,
    MalformedProtobufError,
    Messages,
    decode_packed,
    decode_varints,
    gather,
    parse_fields,
)


def varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def joined(*parts: bytes) -> tuple[Bytes, Messages]:
    """Byte strings one after another, and where each lies."""
    ends = np.cumsum([len(part) for part in parts])
    begins = ends - [len(part) for part in parts]
    data = np.frombuffer(b"".join(parts), np.uint8)
    return data, Messages(np.arange(len(parts)), begins, ends)


NUMBERS = [0, 1, 127, 128, 300, 2**31, 2**63 - 1, 2**64 - 1]


def test_varints_are_what_was_written() -> None:
    data, runs = joined(*(varint(n) for n in NUMBERS))
    values, ends = decode_varints(data, runs.begin)
    assert values.tolist() == NUMBERS
    assert ends.tolist() == runs.end.tolist()


def test_a_varint_without_an_end_ends_past_the_data() -> None:
    data = np.frombuffer(b"\x80\x80", np.uint8)
    assert decode_varints(data, np.array([0]))[1][0] > len(data)
    data = np.frombuffer(b"\x80" * 11 + b"\0", np.uint8)
    assert decode_varints(data, np.array([0]))[1][0] > len(data), "of more than 10 bytes"


def test_packed_numbers_are_those_of_their_lists() -> None:
    lists = [[1, 300], [], [2**63 - 1], [0, 0, 7]]
    data, runs = joined(*(b"".join(map(varint, numbers)) for numbers in lists))
    values, rows = decode_packed(data, runs)
    assert values.tolist() == [n for numbers in lists for n in numbers]
    assert rows.tolist() == [row for row, numbers in enumerate(lists) for _ in numbers]


@pytest.mark.parametrize(
    ("packed", "message"),
    [(b"\x01\x80", "ends past the list"), (b"\x80" * 10 + b"\x01", "more than 10 bytes")],
)
def test_packed_numbers_that_are_malformed_are_refused(packed: bytes, message: str) -> None:
    data, runs = joined(b"\x05", packed)
    with pytest.raises(MalformedProtobufError, match=f"record 1, .*{message}"):
        decode_packed(data, runs)


def test_fields_of_every_wire_type() -> None:
    first = b"\x08" + varint(300) + b"\x12\x03abc"
    second = b"\x19" + bytes(8) + b"\x25" + bytes(4)
    data, messages = joined(first, b"", second)
    fields = parse_fields(data, messages)
    assert fields.message.tolist() == [0, 0, 2, 2]
    assert fields.number.tolist() == [1, 2, 3, 4]
    assert fields.wire.tolist() == [0, 2, 1, 5]
    assert (fields.end - fields.begin).tolist() == [2, 3, 8, 4]
    chosen = fields.where(fields.number == 2)
    assert bytes(gather(data, chosen)) == b"abc"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\x0b", "not a field"),
        (b"\x00\x01", "not a field"),
        (b"\x12\x05abc", "ends past the message"),
        (b"\x19" + bytes(7), "ends past the message"),
        (b"\x08\x01" * 4097, "more than 4,096 fields"),
    ],
    ids=["wire type", "number 0", "text", "eight bytes", "many"],
)
def test_messages_that_are_malformed_are_refused(message: bytes, words: str) -> None:
    data, messages = joined(b"\x08\x01", message)
    with pytest.raises(MalformedProtobufError, match=f"record 1, .*{words}"):
        parse_fields(data, messages)
