"""Find the features of TensorFlow's Example messages: their byte ranges in the file."""

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
    MalformedProtobufError,
    Messages,
    decode_packed,
    find_first,
    gather,
    parse_fields,
)

_FEATURES, _ENTRY, _KEY, _VALUE, _LIST_OF = 1, 1, 1, 2, 1
KINDS = {1: "bytes", 2: "floats", 3: "int64s"}
_UNPACKED = {"bytes": (), "floats": (FOUR_BYTES,), "int64s": (VARINT,)}
"""The wire type of a value that is not packed, by the kind of the feature."""
_MAX_BYTES = 4096
"""Max bytes of a record's numbers or name: the index stores them, and must stay small."""


@dataclass(frozen=True)
class Feature:
    """One feature of several records.

    Attributes:
        name: Name of the feature.
        kind: "bytes", "floats" or "int64s".
        records: The byte ranges of the N records.
        items: The byte ranges of the values in wire format, in the order of the records. One item
            may hold many floats or int64s.
    """

    name: str
    kind: str
    records: Messages
    items: Fields

    def spans(self) -> Messages:
        """Return the byte range of the value in each record.

        For floats, the range covers a whole packed list, as little-endian float32.

        Raises:
            MalformedProtobufError: The feature holds int64s, or a record does not hold exactly one
                value (for floats: one packed list).
        """
        if self.kind == "int64s":
            raise self.error(
                0,
                "holds int64s, which are no bytes as they are: use it in data.values or as "
                "data.label",
            )
        self._check_one_item_each()
        return self.items

    def numbers(self, data: Bytes) -> NDArray[np.int64] | NDArray[np.float32]:
        """Return the values as numbers.

        Returns:
            int64 or float32: (N,) if each record has one number, (N, n) if each has n numbers.

        Raises:
            MalformedProtobufError: The feature holds bytes, a record has no numbers or more than
                4,096 bytes of them, or records have different counts of numbers.
        """
        if self.kind == "bytes":
            raise self.error(0, "holds bytes, where numbers are wanted")
        values, row = self._flatten(data)
        counts = np.bincount(row, minlength=len(self.records))
        odd = find_first((counts != counts[0]) | (counts == 0))
        if odd is not None:
            raise self.error(
                odd,
                f"holds {counts[odd]} numbers, and {counts[0]} in the first record: values "
                "are as many in each, and at least one",
            )
        return values if counts[0] == 1 else values.reshape(len(counts), -1)

    def texts(self, data: Bytes) -> list[bytes]:
        """Return the value of each record as bytes.

        Raises:
            MalformedProtobufError: A value has more than 4,096 bytes, the feature holds int64s, or
                a record does not hold exactly one value.
        """
        spans = self.spans()
        long = find_first(spans.end - spans.begin > _MAX_BYTES)
        if long is not None:
            raise self.error(long, f"holds more than {_MAX_BYTES:,} bytes, which are no name")
        return [
            data[b:e].tobytes()
            for b, e in zip(spans.begin.tolist(), spans.end.tolist(), strict=True)
        ]

    def _flatten(
        self, data: Bytes
    ) -> tuple[NDArray[np.int64] | NDArray[np.float32], NDArray[np.int64]]:
        """Return the numbers of all records, concatenated.

        Also returns, for each number, the row of its record in `records`.
        """
        size = np.bincount(self.items.message, self.items.end - self.items.begin, len(self.records))
        long = find_first(size > _MAX_BYTES)
        if long is not None:
            raise self.error(
                long,
                f"holds {int(size[long]):,} bytes of numbers, more than the index takes: use it "
                "in data.fields",
            )
        if self.kind == "int64s":
            values, item = decode_packed(data, self.items)
            return values, self.items.message[item]
        self._check_whole_floats()
        return gather(data, self.items).view("<f4"), np.repeat(
            self.items.message, (self.items.end - self.items.begin) // 4
        )

    def _check_one_item_each(self) -> None:
        counts = np.bincount(self.items.message, minlength=len(self.records))
        odd = find_first(counts != 1)
        if odd is None:
            return self._check_whole_floats()
        content = (
            "floats that are not packed, which do not follow one another"
            if self.kind == "floats" and counts[odd]
            else f"{counts[odd]} values"
        )
        raise self.error(
            odd,
            f"holds {content}, but a field is one piece of bytes: write it again with one "
            "value (floats packed)",
        )

    def _check_whole_floats(self) -> None:
        odd = find_first((self.items.end - self.items.begin) % 4 != 0)
        if self.kind == "floats" and odd is not None:
            raise self.items.error(odd, f"the feature '{self.name}' ends within a float")

    def error(self, row: int, fault: str) -> MalformedProtobufError:
        """Return (not raise) the error for the record in `row`."""
        return self.records.error(row, f"the feature '{self.name}' {fault}")


def parse_features(data: Bytes, records: Messages, names: Iterable[str]) -> dict[str, Feature]:
    """Find features by name in all records.

    As the wire format allows, entries of a map may come in any order, split into several parts
    and mixed with unknown fields.

    Args:
        data: The bytes of the file.
        records: The byte ranges of the records, which are Example messages.
        names: Names of the features.

    Raises:
        MalformedProtobufError: A record lacks a feature or has it twice, or is not an Example.
    """
    keys, values = _parse_entries(data, records)
    return {name: _find_feature(data, name, records, keys, values) for name in names}


def list_features(data: Bytes, records: Messages) -> list[str]:
    """Return the names of the features of the first record, sorted.

    Args:
        data: The bytes of the file.
        records: The byte ranges of the records, which are Example messages.

    Raises:
        MalformedProtobufError: A record is not an Example message.
    """
    keys, _ = _parse_entries(data, records)
    first = np.flatnonzero(keys.record == records.record[0])
    names = (data[keys.begin[i] : keys.end[i]].tobytes() for i in first)
    return sorted({name.decode(errors="replace") for name in names})


def _parse_entries(data: Bytes, records: Messages) -> tuple[Messages, Messages]:
    """Return the byte ranges of the keys and of the values in all records' feature maps."""
    tops = parse_fields(data, records)
    maps = tops.where((tops.number == _FEATURES) & (tops.wire == DELIMITED))
    entries = parse_fields(data, maps)
    entries = entries.where((entries.number == _ENTRY) & (entries.wire == DELIMITED))
    parts = parse_fields(data, entries)
    parts = parts.where(parts.wire == DELIMITED)
    keys, values = (
        _check_single(parts.where(parts.number == number), entries, part)
        for number, part in ((_KEY, "key"), (_VALUE, "value"))
    )
    return keys, values


def _check_single(parts: Fields, entries: Fields, part: str) -> Messages:
    """Return the byte range of the key, or of the value, in each map entry.

    The range is empty if the entry lacks that part.

    Args:
        parts: All keys, or all values, of the entries.
        entries: The entries of the records' feature maps.
        part: "key" or "value", for messages.

    Raises:
        MalformedProtobufError: An entry has the part twice.
    """
    twice = find_first(np.bincount(parts.message, minlength=len(entries)) > 1)
    if twice is not None:
        raise entries.error(twice, f"a feature with two {part}s")
    begin, end = entries.begin.copy(), entries.begin.copy()
    begin[parts.message], end[parts.message] = parts.begin, parts.end
    return Messages(entries.record, begin, end)


def _find_feature(
    data: Bytes, name: str, records: Messages, keys: Messages, values: Messages
) -> Feature:
    rows = _find_keys(data, name, keys)
    row = keys.record[rows] - records.record[0]
    counts = np.bincount(row, minlength=len(records))
    odd = find_first(counts != 1)
    if odd is not None:
        raise _count_error(data, name, records, keys, odd, int(counts[odd]))
    lists = parse_fields(data, Messages(records.record, values.begin[rows], values.end[rows]))
    lists = lists.where(np.isin(lists.number, tuple(KINDS)) & (lists.wire == DELIMITED))
    kind = _find_kind(name, records, lists)
    items = parse_fields(data, lists)
    is_value = (items.number == _LIST_OF) & np.isin(items.wire, (DELIMITED, *_UNPACKED[kind]))
    return Feature(name, kind, records, items.where(is_value))


def _find_keys(data: Bytes, name: str, keys: Messages) -> NDArray[np.int64]:
    """Return the rows of the keys that equal `name`."""
    letters = np.frombuffer(name.encode(), np.uint8)
    rows = np.flatnonzero(keys.end - keys.begin == len(letters))
    same = data[keys.begin[rows][:, None] + np.arange(len(letters))] == letters
    return np.asarray(rows[same.all(axis=1)])


def _find_kind(name: str, records: Messages, lists: Fields) -> str:
    """Return the kind of a feature, such as "bytes".

    Raises MalformedProtobufError if a record has no value, or records differ in kind.
    """
    counts = np.bincount(lists.message, minlength=len(records))
    odd = find_first(counts != 1)
    if odd is not None:
        fault = "has no value" if counts[odd] == 0 else "has lists of several types"
        raise records.error(odd, f"the feature '{name}' {fault}")
    other = find_first(lists.number != lists.number[0])
    if other is not None:
        this, first = (KINDS[int(lists.number[i])] for i in (other, 0))
        raise lists.error(
            other, f"the feature '{name}' holds {this}, but {first} in a record before it"
        )
    return KINDS[int(lists.number[0])]


def _count_error(
    data: Bytes, name: str, records: Messages, keys: Messages, row: int, count: int
) -> MalformedProtobufError:
    """Return the error for the record in `row`, which has a feature `count` times, not once."""
    if count:
        return records.error(row, f"has the feature '{name}' {count} times")
    mine = np.flatnonzero(keys.record == records.record[row])[:100]
    names = (data[keys.begin[i] : keys.end[i]][:60].tobytes() for i in mine)
    known = {shown(text.decode(errors="replace")).strip("'") for text in names}
    return records.error(row, f"has no feature '{name}'{did_you_mean(name, known)}")
