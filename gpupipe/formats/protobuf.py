"""Parse Protocol Buffers' wire format, for many messages at once.

A message is a sequence of fields: a tag (number and wire type), then a payload. `parse_fields`
takes the byte ranges of N messages, and returns the byte range of every field's payload:

    08 05 12 02 68 69           a message: field 1 is the varint 5, field 2 the bytes "hi"

    >>> data = np.frombuffer(bytes.fromhex("080512026869"), np.uint8)
    >>> message = Messages(np.array([0]), np.array([0]), np.array([6]))
    >>> fields = parse_fields(data, message)
    >>> fields.number, fields.wire, fields.begin, fields.end
    ([1, 2], [VARINT, DELIMITED], [1, 4], [2, 6])
    >>> decode_varints(data, fields.begin[:1])[0]
    [5]

The payload of a delimited field may be a message itself. Fields are a kind of Messages, so another
call of `parse_fields` parses them. NumPy walks all messages in lockstep, one field of each at a
time: a Python loop over the fields of a million records would take minutes.

Invariants:

- Only `gather` and `decode_packed` copy payloads.
- Fields are ordered by message, then by offset. A field lies within its message.
- Invalid bytes raise MalformedProtobufError. They never raise IndexError or yield wrong fields.

The wire format is described at https://protobuf.dev/programming-guides/encoding/.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5
_MAX_FIELDS = 4096
"""Max fields in a message: each takes a NumPy step, so more would take seconds per record."""
_VARINT_BYTES = 10
_MAX_NUMBER = 2**29


class MalformedProtobufError(ValueError):
    """Bytes are not a valid message, or gpupipe cannot read the message.

    Args:
        record: Number of the record in the file.
        offset: Byte offset of the message in the file.
        fault: Description of the fault.
    """

    def __init__(self, record: int, offset: int, fault: str) -> None:
        super().__init__(f"record {record:,}, byte {offset:,}: {fault}")


def find_first(wrong: NDArray[np.bool_]) -> int | None:
    """Return the index of the first True in a mask; None if there is none."""
    rows = np.flatnonzero(wrong)
    return int(rows[0]) if len(rows) else None


@dataclass(frozen=True)
class Messages:
    """N messages, as byte ranges of a file.

    Attributes:
        record: The number of the record that each message is part of, int64 (N,).
        begin: The first byte of each message, int64 (N,).
        end: The byte after each message, int64 (N,).
    """

    record: Offsets
    begin: Offsets
    end: Offsets

    def __len__(self) -> int:
        return len(self.record)

    def error(self, row: int, fault: str) -> MalformedProtobufError:
        """Return (not raise) the error for the message in `row`."""
        return MalformedProtobufError(int(self.record[row]), int(self.begin[row]), fault)


@dataclass(frozen=True)
class Fields(Messages):
    """N fields of messages, ordered by message, then by offset.

    `begin` and `end` are the byte range of the payload; for a varint, of the varint itself.

    Attributes:
        message: The row of the message that each field is in, int64 (N,).
        number: The number of each field, uint64 (N,).
        wire: The wire type of each field, uint64 (N,).
    """

    message: Offsets
    number: NDArray[np.uint64]
    wire: NDArray[np.uint64]

    def where(self, chosen: NDArray[Any]) -> "Fields":
        """Return the fields that `chosen` selects: a mask, or row numbers."""
        return Fields(*(getattr(self, column.name)[chosen] for column in fields(self)))


def parse_fields(data: Bytes, messages: Messages) -> Fields:
    """Find all fields of messages.

    Args:
        data: The bytes of the file.
        messages: The byte ranges of the messages.

    Raises:
        MalformedProtobufError: A message is not valid, or has more than 4,096 fields.
    """
    rows = np.flatnonzero(messages.begin < messages.end)
    rest = Messages(messages.record[rows], messages.begin[rows], messages.end[rows])
    steps: list[tuple[NDArray[Any], ...]] = []
    while len(rest):
        if len(steps) == _MAX_FIELDS:
            raise rest.error(
                0,
                f"a message of more than {_MAX_FIELDS:,} fields, which is more than gpupipe takes",
            )
        number, wire, begin, end = _parse_first_field(data, rest)
        steps.append((rest.record, begin, end, rows, number, wire))
        left = np.flatnonzero(end < rest.end)
        rows, rest = rows[left], Messages(rest.record[left], end[left], rest.end[left])
    empty = np.empty(0, np.int64)
    columns = [np.concatenate(column) for column in zip(*steps, strict=True)] or [empty] * 4 + [
        empty.astype(np.uint64)
    ] * 2
    return Fields(*columns).where(np.argsort(columns[3], kind="stable"))


def _parse_first_field(
    data: Bytes, messages: Messages
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], Offsets, Offsets]:
    """Parse the first field of each message; no message may be empty.

    Returns the field numbers, the wire types, and the begin and end offsets of the payloads.
    """
    tag, begin = decode_varints(data, messages.begin)
    number, wire = tag >> np.uint64(3), tag & np.uint64(7)
    is_valid = (
        np.isin(wire, (VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES))
        & (number > 0)
        & (number < _MAX_NUMBER)
        & (begin <= messages.end)
    )
    _check(messages, is_valid, "not a field of a Protocol Buffers message")
    end = begin + np.select([wire == EIGHT_BYTES, wire == FOUR_BYTES], [8, 4], 0)
    is_varint, delimited = wire == VARINT, wire == DELIMITED
    end[is_varint] = decode_varints(data, begin[is_varint])[1]
    length, after = decode_varints(data, begin[delimited])
    left = messages.end[delimited] - after
    fits = (left >= 0) & (length <= np.maximum(left, 0).astype(np.uint64))
    begin[delimited], end[delimited] = after, after + np.where(fits, length, 0).astype(np.int64)
    is_whole = end <= messages.end
    is_whole[delimited] &= fits
    _check(messages, is_whole, "a field that ends past the message that it is in")
    return number, wire, begin, end


def decode_varints(data: Bytes, offset: Offsets) -> tuple[NDArray[np.uint64], Offsets]:
    """Decode the varint at each offset.

    Returns:
        The values, uint64 (N,), and the offsets after them, int64 (N,). An offset past the end of
        `data` means that there is no valid varint.
    """
    value, end = np.zeros(len(offset), np.uint64), np.full(len(offset), len(data) + 1)
    rows = np.arange(len(offset))
    for n in range(_VARINT_BYTES):
        if not len(rows):
            break
        byte = data[np.minimum(offset[rows] + n, len(data) - 1)]
        value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * n)
        end[rows[byte < 0x80]] = offset[rows[byte < 0x80]] + n + 1
        rows = rows[byte >= 0x80]
    return value, end


def decode_packed(data: Bytes, runs: Messages) -> tuple[NDArray[np.int64], Offsets]:
    """Decode byte ranges of contiguous varints.

    Returns:
        All values, int64 (M,), and for each value the row of its byte range in `runs`, int64 (M,).

    Raises:
        MalformedProtobufError: A varint is too long, or does not end in its range.
    """
    length = runs.end - runs.begin
    row = np.repeat(np.arange(len(runs)), length)
    byte = gather(data, runs)
    last = byte < 0x80
    is_whole = length == 0
    is_whole[~is_whole] = last[np.cumsum(length)[~is_whole] - 1]
    _check(runs, is_whole, "a number that ends past the list that it is in")
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    size = ends - starts + 1
    long = find_first(size > _VARINT_BYTES)
    if long is not None:
        raise runs.error(int(row[starts[long]]), f"a number of more than {_VARINT_BYTES} bytes")
    shift = 7 * (np.arange(len(byte)) - np.repeat(starts, size))
    bits = (byte & 0x7F).astype(np.uint64) << shift.astype(np.uint64)
    values = np.add.reduceat(bits, starts) if len(starts) else bits
    return values.view(np.int64), row[starts]


def gather(data: Bytes, runs: Messages) -> Bytes:
    """Return the bytes of all ranges `runs`, concatenated, uint8 (bytes,)."""
    length = runs.end - runs.begin
    before = np.cumsum(length) - length
    return data[np.repeat(runs.begin - before, length) + np.arange(int(length.sum()))]


def _check(messages: Messages, is_right: NDArray[np.bool_], fault: str) -> None:
    """Raise MalformedProtobufError for the first message whose entry in `is_right` is False."""
    wrong = find_first(~is_right)
    if wrong is not None:
        raise messages.error(wrong, fault)
