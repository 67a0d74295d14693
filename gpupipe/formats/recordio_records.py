"""Parse MXNet's RecordIO files.

Each part of a record has a magic number, a flag and length, and a payload padded to four bytes.
Most records have one part. If a payload contains the magic number, MXNet splits the payload there,
and stores the parts without the magic number: this affects about 7 ImageNet images. The payload of
a record begins with the header of an image record.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

MAGIC = (0xCED7230A).to_bytes(4, "little")
HEADER = 24
"""Size of an image record's header in bytes.

The header holds, in this order: uint32, the count of float32 numbers that follow the header;
float32, the label if that count is 0; two uint64, which are ids.
"""
_HEAD, _LENGTH_BITS = 8, 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_AT_ONCE = 4096
_MAX_PARTS = 1 << 20
"""Max parts that `_walk` returns; a record that needs more is reported as damaged."""
_Bytes = NDArray[np.uint8]
_Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """N records of a file, in M parts.

    Attributes:
        number: The number of each record in the file, from 0, int64 (N,).
        start: The byte offset of each record in the file, int64 (N,).
        part: The row of the record that each part belongs to, int64 (M,).
        begin: The first byte of the payload of each part, int64 (M,).
        length: The size of the payload of each part in bytes, int64 (M,).
    """

    number: _Offsets
    start: _Offsets
    part: _Offsets
    begin: _Offsets
    length: _Offsets

    def find_multipart(self) -> NDArray[np.bool_]:
        """Return a mask of the records that have several parts, bool (N,)."""
        return np.bincount(self.part, minlength=len(self.number)) > 1

    def join_payload(self, data: _Bytes, row: int) -> bytes:
        """Return the payload of the record in `row`, with the magic number between its parts."""
        mine = np.flatnonzero(self.part == row)
        return MAGIC.join(
            data[b : b + n].tobytes()
            for b, n in zip(self.begin[mine].tolist(), self.length[mine].tolist(), strict=True)
        )


@dataclass(frozen=True)
class Images:
    """N image records.

    Attributes:
        number: The number of each record in the file, from 0, int64 (N,).
        numbers: The byte offset of each record's float32 numbers (label or labels), int64 (N,).
        count: The count of each record's float32 numbers, int64 (N,).
        offset: The first byte of each image file, int64 (N,).
        length: The size of each image file in bytes, int64 (N,).
    """

    number: _Offsets
    numbers: _Offsets
    count: _Offsets
    offset: _Offsets
    length: _Offsets

    def select(self, chosen: NDArray[np.bool_]) -> "Images":
        """Return the image records that a mask selects."""
        return Images(*(getattr(self, column.name)[chosen] for column in fields(self)))


def iter_records(data: _Bytes) -> Iterator[Records]:
    """Yield the records of a RecordIO file.

    Yields:
        The next records of the file, with about 4,096 parts together.

    Raises:
        DamagedError: The file is truncated, damaged or not a RecordIO file.
    """
    offset, number = 0, 0
    while offset < len(data):
        heads, flags, lengths, offset = _walk(data, offset)
        flag, head = np.array(flags), np.array(heads, np.int64)
        first = flag <= _FIRST
        if (
            not first[0]
            or flag[-1] not in (_WHOLE, _LAST)
            or ((flag[1:] <= _FIRST) != np.isin(flag[:-1], (_WHOLE, _LAST))).any()
        ):
            raise DamagedError(
                f"the record at byte {heads[0]:,}, or one after it, lacks one of its parts"
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


def _walk(data: _Bytes, offset: int) -> tuple[list[int], list[int], list[int], int]:
    """Return the offsets, flags and payload lengths of parts, and the offset after the last.

    Starts at `offset`, and stops after about 4,096 parts at the end of a record. All offsets and
    lengths are in bytes.
    """
    heads, flags, lengths = list[int](), list[int](), list[int]()
    view, size, head_at = data.data, len(data), struct.Struct("<4sI").unpack_from
    flag = _WHOLE
    while offset < size and (len(heads) < _AT_ONCE or flag not in (_WHOLE, _LAST)):
        magic, word = head_at(view, offset) if offset + _HEAD <= size else (MAGIC, 0xFFFFFFFF)
        flag, length = word >> _LENGTH_BITS, word & ((1 << _LENGTH_BITS) - 1)
        if magic != MAGIC:
            raise DamagedError(
                f"no record begins at byte {offset:,}, where one should: the file is "
                "damaged, or no RecordIO file"
            )
        if offset + _HEAD + length > size:
            raise DamagedError(f"cut off: the record at byte {offset:,} ends past the file's end")
        if len(heads) == _MAX_PARTS:
            raise DamagedError(
                f"a record of more than {_MAX_PARTS - _AT_ONCE:,} parts ends past byte {offset:,}"
            )
        if flag > _LAST:
            raise DamagedError(f"the record at byte {offset:,} has the flag {flag}, which none has")
        heads.append(offset)
        flags.append(flag)
        lengths.append(length)
        offset += _HEAD + length + -length % 4
    return heads, flags, lengths, offset


def parse_images(data: _Bytes, number: _Offsets, begin: _Offsets, length: _Offsets) -> Images:
    """Parse the headers of image records.

    Args:
        data: The bytes that hold the payloads.
        number: The number of each record in the file, for messages.
        begin: The byte offset of each payload in `data`.
        length: The size of each payload in bytes.

    Raises:
        ValueError: A payload is too short for its header, or for the numbers that it announces.
    """
    _check(
        number, length >= HEADER, f"is shorter than the header of an image record ({HEADER} bytes)"
    )
    flag = data[begin[:, None] + np.arange(4)].copy().view("<u4")[:, 0].astype(np.int64)
    after = np.where(flag > 0, HEADER + 4 * flag, HEADER)
    _check(number, after <= length, "is shorter than the numbers that its header announces")
    numbers = begin + np.where(flag > 0, HEADER, 4)
    return Images(number, numbers, np.maximum(flag, 1), begin + after, length - after)


def read_numbers(data: _Bytes, images: Images, first: int, end: int) -> NDArray[np.float32]:
    """Return the numbers `first` to `end` - 1 of N image records, float32 (N, end - first).

    Args:
        data: The bytes that hold the payloads.
        images: The image records.
        first: Index of the first number, from 0.
        end: Index after the last number.

    Raises:
        ValueError: A record has fewer than `end` numbers.
    """
    _check(images.number, images.count >= end, f"has fewer than {end} numbers")
    offsets = (images.numbers + 4 * first)[:, None] + np.arange(4 * (end - first))
    floats: NDArray[np.float32] = data[offsets].copy().view("<f4")
    return floats


def _check(number: _Offsets, is_right: NDArray[np.bool_], fault: str) -> None:
    wrong = np.flatnonzero(~is_right)
    if len(wrong):
        raise ValueError(f"record {int(number[wrong[0]]):,} {fault}")


def parse_index(text: str) -> dict[int, str]:
    """Parse the text of an .idx file.

    Returns:
        A dict from the byte offset of each record in the .rec file to the record's key.

    Raises:
        ValueError: A line is not valid, or repeats an offset. The message begins with the line
            number.
    """
    key_of = dict[int, str]()
    for number, line in enumerate(text.splitlines(), 1):
        key, tab, offset = line.strip().rpartition("\t")
        if not line.strip():
            continue
        if not tab or not offset.isascii() or not offset.isdecimal() or len(offset) > 18:
            raise ValueError(f"{number}: not a key, a TAB and where its record begins")
        if int(offset) in key_of:
            raise ValueError(
                f"{number}: byte {int(offset):,} stands in it more than once: make it again"
            )
        key_of[int(offset)] = key
    return key_of
