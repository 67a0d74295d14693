"""RecordIO, as MXNet has it: magic number, flags and length, payload, filled up to four bytes; a
payload begins with an image record's header.

A payload in which the magic number stands is stored without it, in several parts: 7 or so of
ImageNet's images are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import Damaged

MAGIC = (0xCED7230A).to_bytes(4, "little")
HEADER = 24
"""Bytes of an image record's header: how many numbers follow it, uint32; the label, float32, where
none do; two ids, uint64.
"""
_HEAD, _LENGTH_BITS = 8, 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_AT_ONCE = 4096
_MOST_PARTS = 1 << 20
"""Of the records that are found at once."""
_Bytes = NDArray[np.uint8]
_Places = NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """Some records of a file, in rows. number: int64 (N,), from 0 on; start: where each begins.
    part: int64 (M,), the row that each part is of; begin, length: where the payload of each part
    is.
    """

    number: _Places
    start: _Places
    part: _Places
    begin: _Places
    length: _Places

    def several(self) -> NDArray[np.bool_]:
        """Which rows have several parts."""
        return np.bincount(self.part, minlength=len(self.number)) > 1

    def payload(self, data: _Bytes, row: int) -> bytes:
        """Of one row, whole."""
        mine = np.flatnonzero(self.part == row)
        return MAGIC.join(
            data[b : b + n].tobytes()
            for b, n in zip(self.begin[mine].tolist(), self.length[mine].tolist(), strict=True)
        )


@dataclass(frozen=True)
class Images:
    """Image records, in rows: where the numbers of each are (float32) and how many, and where its
    image file is. All int64 (N,).
    """

    numbers: _Places
    count: _Places
    offset: _Places
    length: _Places

    def where(self, chosen: NDArray[np.bool_]) -> Images:
        """The rows of a mask."""
        return Images(
            self.numbers[chosen], self.count[chosen], self.offset[chosen], self.length[chosen]
        )


def records(data: _Bytes) -> Iterator[Records]:
    """The records of a file, some at a time.

    Raises ValueError where it is cut off or no RecordIO file.
    """
    place, number = 0, 0
    while place < len(data):
        heads, flags, lengths, place = _walk(data, place)
        flag, head = np.array(flags), np.array(heads, np.int64)
        first = flag <= _FIRST
        if (
            not first[0]
            or flag[-1] not in (_WHOLE, _LAST)
            or ((flag[1:] <= _FIRST) != np.isin(flag[:-1], (_WHOLE, _LAST))).any()
        ):
            raise Damaged(
                f"the record at byte {heads[0]:,}, or one behind it, lacks one of its parts"
            )
        count = int(first.sum())
        yield Records(
            np.arange(number, number + count),
            head[first],
            np.cumsum(first) - 1,
            head + _HEAD,
            np.array(lengths, np.int64),
        )
        number += count


def _walk(data: _Bytes, place: int) -> tuple[list[int], list[int], list[int], int]:
    """Where the parts of the next records begin, their flags, the lengths of their payloads, and
    where the record behind them begins.
    """
    heads, flags, lengths = list[int](), list[int](), list[int]()
    view, size, head_at = data.data, len(data), struct.Struct("<4sI").unpack_from
    flag = _WHOLE
    while place < size and (len(heads) < _AT_ONCE or flag not in (_WHOLE, _LAST)):
        magic, word = head_at(view, place) if place + _HEAD <= size else (MAGIC, 0xFFFFFFFF)
        flag, length = word >> _LENGTH_BITS, word & ((1 << _LENGTH_BITS) - 1)
        if magic != MAGIC:
            raise Damaged(
                f"no record begins at byte {place:,}, where one should: the file is "
                "damaged, or no RecordIO file"
            )
        if place + _HEAD + length > size:
            raise Damaged(f"cut off: the record at byte {place:,} ends behind the file's end")
        if len(heads) == _MOST_PARTS:
            raise Damaged(
                f"a record of more than {_MOST_PARTS - _AT_ONCE:,} parts ends behind byte {place:,}"
            )
        if flag > _LAST:
            raise Damaged(f"the record at byte {place:,} has the flag {flag}, which none can have")
        heads.append(place)
        flags.append(flag)
        lengths.append(length)
        place += _HEAD + length + -length % 4
    return heads, flags, lengths, place


def images(data: _Bytes, number: _Places, begin: _Places, length: _Places) -> Images:
    """What payloads hold. number: of the records, for messages. Raises ValueError."""
    _check(
        number, length >= HEADER, f"is shorter than the header of an image record ({HEADER} bytes)"
    )
    flag = data[begin[:, None] + np.arange(4)].copy().view("<u4")[:, 0].astype(np.int64)
    after = np.where(flag > 0, HEADER + 4 * flag, HEADER)
    _check(number, after <= length, "is shorter than the numbers that its header announces")
    return Images(
        begin + np.where(flag > 0, HEADER, 4), np.maximum(flag, 1), begin + after, length - after
    )


def numbers(
    data: _Bytes, number: _Places, found: Images, first: int, end: int
) -> NDArray[np.float32]:
    """The numbers from `first` to before `end` of each record, (N, end - first).

    Raises ValueError where one has fewer.
    """
    _check(number, found.count >= end, f"has fewer than {end} numbers")
    places = (found.numbers + 4 * first)[:, None] + np.arange(4 * (end - first))
    floats: NDArray[np.float32] = data[places].copy().view("<f4")
    return floats


def _check(number: _Places, right: NDArray[np.bool_], what: str) -> None:
    wrong = np.flatnonzero(~right)
    if len(wrong):
        raise ValueError(f"record {int(number[wrong[0]]):,} {what}")


def listed(text: str) -> tuple[list[str], list[int]]:
    """The keys and places that an .idx file lists.

    Raises ValueError, which begins with the line's number.
    """
    keys, places = [], []
    for number, line in enumerate(text.splitlines(), 1):
        key, tab, place = line.strip().rpartition("\t")
        if not line.strip():
            continue
        if not tab or not place.isascii() or not place.isdecimal() or len(place) > 18:
            raise ValueError(f"{number}: not a key, a TAB and where its record begins")
        keys.append(key)
        places.append(int(place))
    return keys, places
