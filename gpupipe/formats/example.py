"""The features of TensorFlow's Example messages: where the bytes of each are in the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean, shown
from gpupipe.formats.protobuf import (
    DELIMITED,
    FOUR_BYTES,
    VARINT,
    Bytes,
    Fields,
    MalformedProtobuf,
    Messages,
    fields,
    gathered,
    packed,
)

_FEATURES, _ENTRY, _KEY, _VALUE, _LIST_OF = 1, 1, 1, 2, 1
KINDS = {1: "bytes", 2: "floats", 3: "int64s"}
_MOST_BYTES = 4096
"""Of one record's numbers or name: they go into the index, which must stay small."""


@dataclass(frozen=True)
class Feature:
    """A feature of some records. kind: "bytes", "floats" or "int64s". items: its values in the wire
    format, in the order of the records; floats and int64s may be many in one item."""

    name: str
    kind: str
    records: Messages
    items: Fields

    def spans(self) -> Messages:
        """The bytes of each record's one value; of floats, of all of them: float32 in the order of
        bytes of x86. Raises MalformedProtobuf.
        """
        if self.kind == "int64s":
            raise self.wrong(
                0,
                "holds int64s, which are no bytes as they are: use it in data.values or as "
                "data.label",
            )
        self._one_item_each()
        return Messages(self.items.record, self.items.begin, self.items.end)

    def numbers(self, data: Bytes) -> NDArray[np.int64] | NDArray[np.float32]:
        """The values, (N,) where each record has one, else (N, n).

        Raises MalformedProtobuf where records have different numbers of them.
        """
        if self.kind == "bytes":
            raise self.wrong(0, "holds bytes, where numbers are wanted")
        values, row = self._flat(data)
        counts = np.bincount(row, minlength=len(self.records))
        odd = np.flatnonzero((counts != counts[0]) | (counts == 0))
        if len(odd):
            i = int(odd[0])
            raise self.wrong(
                i,
                f"holds {counts[i]} numbers, and {counts[0]} in the first record: values "
                "are as many in each, and at least one",
            )
        return values if counts[0] == 1 else values.reshape(len(counts), -1)

    def texts(self, data: Bytes) -> list[bytes]:
        """Each record's one value. Raises MalformedProtobuf."""
        spans = self.spans()
        long = np.flatnonzero(spans.end - spans.begin > _MOST_BYTES)
        if len(long):
            raise self.wrong(
                int(long[0]), f"holds more than {_MOST_BYTES:,} bytes, which are no name"
            )
        return [
            data[b:e].tobytes()
            for b, e in zip(spans.begin.tolist(), spans.end.tolist(), strict=True)
        ]

    def _flat(
        self, data: Bytes
    ) -> tuple[NDArray[np.int64] | NDArray[np.float32], NDArray[np.int64]]:
        """All values behind one another, and the row of the records that each is of."""
        size = np.bincount(self.items.message, self.items.end - self.items.begin, len(self.records))
        long = np.flatnonzero(size > _MOST_BYTES)
        if len(long):
            raise self.wrong(
                int(long[0]),
                f"holds {int(size[long[0]]):,} bytes of numbers, more than the index takes: "
                "use it in data.fields",
            )
        if self.kind == "int64s":
            values, item = packed(data, self.items)
            return values, self.items.message[item]
        self._whole_floats()
        return gathered(data, self.items).view("<f4"), np.repeat(
            self.items.message, (self.items.end - self.items.begin) // 4
        )

    def _one_item_each(self) -> None:
        counts = np.bincount(self.items.message, minlength=len(self.records))
        odd = np.flatnonzero(counts != 1)
        if not len(odd):
            return self._whole_floats()
        what = (
            "floats that are not packed, which do not lie behind one another"
            if self.kind == "floats" and counts[odd[0]]
            else f"{counts[odd[0]]} values"
        )
        raise self.wrong(
            int(odd[0]),
            f"holds {what}, but a field is one piece of bytes: write it again with one "
            "value (floats packed)",
        )

    def _whole_floats(self) -> None:
        if self.kind == "floats":
            odd = np.flatnonzero((self.items.end - self.items.begin) % 4)
            if len(odd):
                raise MalformedProtobuf(
                    int(self.items.record[odd[0]]),
                    int(self.items.begin[odd[0]]),
                    f"the feature '{self.name}' ends within a float",
                )

    def wrong(self, row: int, what: str) -> MalformedProtobuf:
        return MalformedProtobuf(
            int(self.records.record[row]),
            int(self.records.begin[row]),
            f"the feature '{self.name}' {what}",
        )


def features(data: Bytes, records: Messages, names: Iterable[str]) -> dict[str, Feature]:
    """The features with these names of all the records, none of which may lack one. Raises
    MalformedProtobuf.

    A map's entries may come in any order and parts, as any field that is not known may.
    """
    tops = fields(data, records)
    entries = _messages(
        data, tops.where((tops.number == _FEATURES) & (tops.wire == DELIMITED)), _ENTRY
    )
    parts = fields(data, entries)
    parts = parts.where(parts.wire == DELIMITED)
    keys, values = (
        _only(parts.where(parts.number == number), entries, what)
        for number, what in ((_KEY, "key"), (_VALUE, "value"))
    )
    return {name: _feature(data, name, records, keys, values) for name in names}


def _messages(data: Bytes, above: Messages, number: int) -> Fields:
    """The messages in field `number` of those above."""
    found = fields(data, above)
    return found.where((found.number == number) & (found.wire == DELIMITED))


def _only(found: Fields, entries: Fields, what: str) -> Messages:
    """The part of each entry, which has it once; an empty one where it lacks."""
    twice = np.flatnonzero(np.bincount(found.message, minlength=len(entries)) > 1)
    if len(twice):
        raise MalformedProtobuf(
            int(entries.record[twice[0]]),
            int(entries.begin[twice[0]]),
            f"a feature with two {what}s",
        )
    begin, end = entries.begin.copy(), entries.begin.copy()
    begin[found.message], end[found.message] = found.begin, found.end
    return Messages(entries.record, begin, end)


def _feature(
    data: Bytes, name: str, records: Messages, keys: Messages, values: Messages
) -> Feature:
    rows = _called(data, name, keys)
    row = keys.record[rows] - records.record[0]
    counts = np.bincount(row, minlength=len(records))
    odd = np.flatnonzero(counts != 1)
    if len(odd):
        _refuse_count(data, name, records, keys, int(odd[0]), int(counts[odd[0]]))
    lists = fields(
        data, Messages(records.record, *(getattr(values, what)[rows] for what in ("begin", "end")))
    )
    lists = lists.where(np.isin(lists.number, tuple(KINDS)) & (lists.wire == DELIMITED))
    kind = _kind(name, records, lists)
    items = fields(data, lists)
    wires = {
        "bytes": (DELIMITED,),
        "floats": (DELIMITED, FOUR_BYTES),
        "int64s": (DELIMITED, VARINT),
    }[kind]
    return Feature(
        name, kind, records, items.where((items.number == _LIST_OF) & np.isin(items.wire, wires))
    )


def _called(data: Bytes, name: str, keys: Messages) -> NDArray[np.int64]:
    """The rows of the keys that are `name`."""
    letters = np.frombuffer(name.encode(), np.uint8)
    rows = np.flatnonzero(keys.end - keys.begin == len(letters))
    same = data[keys.begin[rows][:, None] + np.arange(len(letters))] == letters
    return np.asarray(rows[same.all(axis=1)])


def _kind(name: str, records: Messages, lists: Fields) -> str:
    """What the feature is in all of the records. Raises MalformedProtobuf."""
    counts = np.bincount(lists.message, minlength=len(records))
    odd = np.flatnonzero(counts != 1)
    if len(odd):
        what = "has no value" if counts[odd[0]] == 0 else "has lists of several types"
        raise MalformedProtobuf(
            int(records.record[odd[0]]), int(records.begin[odd[0]]), f"the feature '{name}' {what}"
        )
    other = np.flatnonzero(lists.number != lists.number[0])
    if len(other):
        this, first = (KINDS[int(lists.number[i])] for i in (other[0], 0))
        raise MalformedProtobuf(
            int(lists.record[other[0]]),
            int(lists.begin[other[0]]),
            f"the feature '{name}' holds {this}, but {first} in a record before it",
        )
    return KINDS[int(lists.number[0])]


def _refuse_count(
    data: Bytes, name: str, records: Messages, keys: Messages, row: int, count: int
) -> None:
    if count:
        what = f"has the feature '{name}' {count} times"
    else:
        mine = np.flatnonzero(keys.record == records.record[row])[:100]
        known = {
            shown(data[keys.begin[i] : keys.end[i]][:60].tobytes().decode(errors="replace")).strip(
                "'"
            )
            for i in mine
        }
        what = f"has no feature '{name}'{did_you_mean(name, known)}"
    raise MalformedProtobuf(int(records.record[row]), int(records.begin[row]), what)
