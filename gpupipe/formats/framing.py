"""Parse TFRecord's framing: length (8 bytes), CRC-32C of the length, record, CRC-32C of the record.

Both checksums are masked (`_mask`).
The format is described at https://www.tensorflow.org/tutorials/load_data/tfrecord.
"""

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError
from gpupipe.formats.protobuf import Bytes, Messages, find_first
from gpupipe.runtime.installation import install_command

_HEAD, _TAIL = 12, 4
_AT_ONCE = 4096
"""Number of records to locate before the checksums of their lengths are verified.

So a file of another format is rejected early, not after a walk over the whole file.
"""
_MASK = np.uint32(0xA282EAD8)
_POLYNOMIAL = np.uint32(0x82F63B78)
_CHECKSUMS = (
    "the file is damaged, or no TFRecord file (compressed ones, GZIP or ZLIB, must be "
    "written again without compression)"
)


def iter_records(data: Bytes, verify: bool = False) -> Iterator[Messages]:
    """Yield the byte ranges of the records in a TFRecord file.

    The checksums of the lengths are always verified.

    Args:
        data: The bytes of the file.
        verify: Whether to also verify the checksums of the records. Needs the package crc32c.

    Yields:
        The byte ranges of up to 4,096 records at a time. Records are numbered from 0.

    Raises:
        ValueError: The file is compressed, or `verify` is true and crc32c is not installed.
        DamagedError: The file is truncated or not a TFRecord file, or a checksum is wrong.
    """
    if bytes(data[:2]) == b"\x1f\x8b":
        raise ValueError(
            "compressed with GZIP, where no record can be found without reading all before "
            "it: write it again without compression"
        )
    offset, number = 0, 0
    while offset < len(data):
        starts, offset, problem = _walk(data, offset)
        batch = _check_lengths(data, np.array(starts, np.int64), number)
        if problem:
            raise DamagedError(problem)
        if verify:
            _verify(data, batch)
        number += len(batch)
        yield batch


def _walk(data: Bytes, offset: int) -> tuple[list[int], int, str]:
    """Return the byte offsets of up to 4,096 records, the offset after them, and a fault (or "").

    The fault tells where the file is cut off. The offsets include a record that ends past the
    file's end: if its length has a wrong checksum, the caller reports the checksum instead.
    """
    starts, view, size = list[int](), data.data, len(data)
    length_at = struct.Struct("<Q").unpack_from
    while offset < size and len(starts) < _AT_ONCE:
        if offset + _HEAD > size:
            fault = f"cut off at byte {offset:,}: {size - offset} bytes are no record"
            return starts, offset, fault
        starts.append(offset)
        end = offset + _HEAD + length_at(view, offset)[0] + _TAIL
        if end > size:
            lacking = f"the record at byte {offset:,} ends {end - size:,} bytes past the file's end"
            return starts, offset, f"cut off: {lacking}"
        offset = end
    return starts, offset, ""


def _check_lengths(data: Bytes, starts: NDArray[np.int64], number: int) -> Messages:
    """Return the byte ranges of records. Raises DamagedError if a length's checksum is wrong.

    Args:
        data: The bytes of the file.
        starts: The byte offset of each record's length, int64 (N,).
        number: The number that the first of these records has in the file.
    """
    if not len(starts):
        return Messages(starts, starts, starts)
    head = data[starts[:, None] + np.arange(_HEAD)]
    length, stored = head[:, :8].copy().view("<u8")[:, 0], head[:, 8:].copy().view("<u4")[:, 0]
    wrong = find_first(_mask(_compute_crcs(head[:, :8])) != stored)
    if wrong is not None:
        raise DamagedError(
            f"the checksum of the length at byte {int(starts[wrong]):,} is wrong: {_CHECKSUMS}"
        )
    begin = starts + _HEAD
    return Messages(np.arange(number, number + len(starts)), begin, begin + length.astype(np.int64))


def _verify(data: Bytes, batch: Messages) -> None:
    """Raise DamagedError if a record's checksum is wrong; ValueError if crc32c is not installed."""
    try:
        from crc32c import crc32c
    except ImportError as e:
        raise ValueError(
            f"verifying records needs crc32c: run {install_command('tfrecord')}, or leave out "
            "data.verify"
        ) from e
    view = data.data
    spans = zip(batch.begin.tolist(), batch.end.tolist(), strict=True)
    crcs = np.array([crc32c(view[begin:end]) for begin, end in spans], np.uint32)
    stored = data[batch.end[:, None] + np.arange(_TAIL)].copy().view("<u4")[:, 0]
    row = find_first(_mask(crcs) != stored)
    if row is not None:
        raise DamagedError(
            f"record {int(batch.record[row]):,}, byte {int(batch.begin[row]):,}: the "
            "checksum is wrong: the record is damaged"
        )


def _mask(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Mask a CRC as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK


def _compute_table() -> NDArray[np.uint32]:
    """Compute the lookup table of CRC-32C."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(
            table & np.uint32(1), (table >> np.uint32(1)) ^ _POLYNOMIAL, table >> np.uint32(1)
        )
    return table


_TABLE = _compute_table()


def _compute_crcs(texts: Bytes) -> NDArray[np.uint32]:
    """Return the CRC-32C of each row of bytes, uint32 (N,).

    Args:
        texts: N rows of equally many bytes, uint8 (N, bytes).
    """
    crc = np.full(len(texts), 0xFFFFFFFF, np.uint32)
    for column in texts.T:
        crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)
