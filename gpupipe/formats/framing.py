"""TFRecord's framing: length (8 bytes), its CRC, the record, its CRC."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import Damaged
from gpupipe.formats.protobuf import Bytes, Messages

_HEAD, _TAIL = 12, 4
_AT_ONCE = 4096
"""Records that are found before their checksums are looked at: what is no TFRecord must not be
walked to its end.
"""
_MASK = np.uint32(0xA282EAD8)
_POLYNOMIAL = np.uint32(0x82F63B78)
_CHECKSUMS = (
    "the file is damaged, or no TFRecord file (compressed ones, GZIP or ZLIB, must be "
    "written again without compression)"
)


def records(data: Bytes, verify: bool = False) -> Iterator[Messages]:
    """The records of a file, some at a time; they count from 0. verify: check their bytes too, for
    which crc32c must be installed.

    Raises ValueError where the file is cut off or no TFRecord file, or a checksum is wrong.
    """
    if bytes(data[:2]) == b"\x1f\x8b":
        raise ValueError(
            "compressed with GZIP, where no record can be found without reading all before "
            "it: write it again without compression"
        )
    place, number = 0, 0
    while place < len(data):
        starts, place, complaint = _walk(data, place)
        found = _checked(data, np.array(starts, np.int64), number)
        if complaint:
            raise Damaged(complaint)
        if verify:
            _verify(data, found)
        number += len(found)
        yield found


def _walk(data: Bytes, place: int) -> tuple[list[int], int, str]:
    """Where the next records start, where the one behind them does, and what is wrong there."""
    starts, view, size = list[int](), data.data, len(data)
    length_at = struct.Struct("<Q").unpack_from
    while place < size and len(starts) < _AT_ONCE:
        if place + _HEAD > size:
            return starts, place, f"cut off at byte {place:,}: {size - place} bytes are no record"
        starts.append(place)
        end = place + _HEAD + length_at(view, place)[0] + _TAIL
        if end > size:
            return (
                starts,
                place,
                f"cut off: the record at byte {place:,} ends {end - size:,} bytes behind "
                "the file's end",
            )
        place = end
    return starts, place, ""


def _checked(data: Bytes, starts: NDArray[np.int64], number: int) -> Messages:
    """The records that start there; raises ValueError where the checksum of a length is wrong."""
    if not len(starts):
        return Messages(starts, starts, starts)
    head = data[starts[:, None] + np.arange(_HEAD)]
    length, told = head[:, :8].copy().view("<u8")[:, 0], head[:, 8:].copy().view("<u4")[:, 0]
    wrong = np.flatnonzero(_masked(_crc_of_lengths(head[:, :8])) != told)
    if len(wrong):
        raise Damaged(
            f"the checksum of the length at byte {int(starts[wrong[0]]):,} is wrong: {_CHECKSUMS}"
        )
    begin = starts + _HEAD
    return Messages(np.arange(number, number + len(starts)), begin, begin + length.astype(np.int64))


def _verify(data: Bytes, found: Messages) -> None:
    try:
        from crc32c import crc32c
    except ImportError as e:
        raise ValueError(
            "verifying records needs crc32c: run 'pip install gpupipe[tfrecord]', or leave "
            "out data.verify"
        ) from e
    view = data.data
    crcs = np.array(
        [
            crc32c(view[begin:end])
            for begin, end in zip(found.begin.tolist(), found.end.tolist(), strict=True)
        ],
        np.uint32,
    )
    told = data[found.end[:, None] + np.arange(_TAIL)].copy().view("<u4")[:, 0]
    wrong = np.flatnonzero(_masked(crcs) != told)
    if len(wrong):
        row = int(wrong[0])
        raise Damaged(
            f"record {int(found.record[row]):,}, byte {int(found.begin[row]):,}: the "
            "checksum is wrong: the record is damaged"
        )


def _masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK


def _table() -> NDArray[np.uint32]:
    """What each value of a byte does to a CRC-32C."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(
            table & np.uint32(1), (table >> np.uint32(1)) ^ _POLYNOMIAL, table >> np.uint32(1)
        )
    return table


_TABLE = _table()


def _crc_of_lengths(texts: Bytes) -> NDArray[np.uint32]:
    """CRC-32C of rows of bytes, uint8 (N, bytes): a step a column, so for short rows alone."""
    crc = np.full(len(texts), 0xFFFFFFFF, np.uint32)
    for column in texts.T:
        crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)
