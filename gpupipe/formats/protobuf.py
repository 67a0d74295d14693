"""Protocol Buffers' wire format, for many messages at once: NumPy walks them in step, a field of
each at a time, and copies no payload.

A loop in Python over the fields of a million records would take minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5
_MOST_FIELDS = 4096
"""More in one message would take as many steps: seconds for a single record."""
_VARINT_BYTES = 10
_MOST_NUMBER = 2**29


class MalformedProtobuf(ValueError):
    """Bytes that are no message, or none that can be taken.

    record: of which record, by its number; place: where, counted in bytes.
    """

    def __init__(self, record: int, place: int, what: str) -> None:
        self.record, self.place, self.what = record, place, what
        super().__init__(f"record {record:,}, byte {place:,}: {what}")


@dataclass(frozen=True)
class Messages:
    """Some messages, in rows.

    record: int64 (N,), which record each is of; begin, end: int64 (N,), where its bytes are.
    """

    record: Places
    begin: Places
    end: Places

    def __len__(self) -> int:
        return len(self.record)


@dataclass(frozen=True)
class Fields(Messages):
    """Fields of messages, in rows, message by message and in the order of their bytes, which are
    here those of the payload (of a varint: itself).

    message: int64 (N,), of which row of the messages. number, wire: uint64 (N,), the field's number
    and the type of its payload.
    """

    message: Places
    number: NDArray[np.uint64]
    wire: NDArray[np.uint64]

    def where(self, chosen: NDArray[Any]) -> Fields:
        """The rows of a mask, or with these numbers."""
        return Fields(
            *(
                getattr(self, what)[chosen]
                for what in ("record", "begin", "end", "message", "number", "wire")
            )
        )


def fields(data: Bytes, messages: Messages) -> Fields:
    """All fields of some messages in `data`. Raises MalformedProtobuf."""
    place, alive = messages.begin.copy(), np.flatnonzero(messages.begin < messages.end)
    steps: list[tuple[NDArray[Any], ...]] = []
    while len(alive):
        if len(steps) == _MOST_FIELDS:
            _refuse(
                messages,
                place,
                alive,
                f"a message of more than {_MOST_FIELDS:,} fields, which is more than gpupipe takes",
            )
        number, wire, begin, end = _field(data, messages, place, alive)
        steps.append((messages.record[alive], begin, end, alive, number, wire))
        place[alive] = end
        alive = alive[end < messages.end[alive]]
    empty = np.empty(0, np.int64)
    columns = [np.concatenate(column) for column in zip(*steps, strict=True)] or [empty] * 4 + [
        empty.astype(np.uint64)
    ] * 2
    return Fields(*columns).where(np.argsort(columns[3], kind="stable"))


def _field(
    data: Bytes, messages: Messages, place: Places, alive: Places
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], Places, Places]:
    """Number, wire type, and begin and end of the payload of the field at `place` of each message
    that is alive.
    """
    most = messages.end[alive]
    tag, begin = varints(data, place[alive])
    number, wire = tag >> np.uint64(3), tag & np.uint64(7)
    known = (
        np.isin(wire, (VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES))
        & (number > 0)
        & (number < _MOST_NUMBER)
    )
    _check(
        messages, place, alive, known & (begin <= most), "not a field of a Protocol Buffers message"
    )
    end = begin + np.select([wire == EIGHT_BYTES, wire == FOUR_BYTES], [8, 4], 0)
    is_varint, delimited = wire == VARINT, wire == DELIMITED
    end[is_varint] = varints(data, begin[is_varint])[1]
    length, after = varints(data, begin[delimited])
    left = most[delimited] - after
    fits = (left >= 0) & (length <= np.maximum(left, 0).astype(np.uint64))
    begin[delimited], end[delimited] = after, after + np.where(fits, length, 0).astype(np.int64)
    whole = end <= most
    whole[delimited] &= fits
    _check(messages, place, alive, whole, "a field that ends behind the message that it is in")
    return number, wire, begin, end


def varints(data: Bytes, place: Places) -> tuple[NDArray[np.uint64], Places]:
    """The varint at each place, and where it ends: behind the end of all data where there is
    none.
    """
    value, end = np.zeros(len(place), np.uint64), np.full(len(place), len(data) + 1)
    rows = np.arange(len(place))
    for n in range(_VARINT_BYTES):
        if not len(rows):
            break
        byte = data[np.minimum(place[rows] + n, len(data) - 1)]
        value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * n)
        end[rows[byte < 0x80]] = place[rows[byte < 0x80]] + n + 1
        rows = rows[byte >= 0x80]
    return value, end


def packed(data: Bytes, runs: Messages) -> tuple[NDArray[np.int64], Places]:
    """All varints in runs of them, as int64, and the row of `runs` that each is of.

    Raises MalformedProtobuf.
    """
    length = runs.end - runs.begin
    row = np.repeat(np.arange(len(runs)), length)
    byte = gathered(data, runs)
    last = byte < 0x80
    stops = np.cumsum(length)[length > 0] - 1
    _check(
        runs,
        runs.begin,
        np.flatnonzero(length > 0),
        last[stops],
        "a number that ends behind the list that it is in",
    )
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    size = ends - starts + 1
    _check(
        runs,
        runs.begin,
        row[starts],
        size <= _VARINT_BYTES,
        f"a number of more than {_VARINT_BYTES} bytes",
    )
    shift = 7 * (np.arange(len(byte)) - np.repeat(starts, size))
    bits = (byte & 0x7F).astype(np.uint64) << shift.astype(np.uint64)
    values = np.add.reduceat(bits, starts) if len(starts) else bits
    return values.view(np.int64), row[starts]


def gathered(data: Bytes, runs: Messages) -> Bytes:
    """The bytes of all runs behind one another, uint8 (bytes,)."""
    length = runs.end - runs.begin
    before = np.cumsum(length) - length
    return data[np.repeat(runs.begin - before, length) + np.arange(int(length.sum()))]


def _check(
    messages: Messages, place: Places, rows: Places, right: NDArray[np.bool_], what: str
) -> None:
    """Raises MalformedProtobuf for the first of `rows` that is not right."""
    if not right.all():
        _refuse(messages, place, rows[~right], what)


def _refuse(messages: Messages, place: Places, rows: Places, what: str) -> None:
    raise MalformedProtobuf(int(messages.record[rows[0]]), int(place[rows[0]]), what)
