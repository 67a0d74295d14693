"""The binary layout of a cache file.

    0            header: identifies the job of the file; written once
    3968         counters: how full the file is; written under the file's lock
    4096         slots: a hash table of records, 64 bytes each; an empty slot has 64 zero bytes
    data_offset  the pixels of the records, H x W x C of uint8 each, one after the other

Each part has a checksum. Numbers are little-endian.
"""

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

MAGIC = b"GPDECOD1"
COUNTERS_OFFSET = 3968
SLOTS_OFFSET = 4096
SLOT_SIZE = 64
ALIGNMENT = 64
UNDECIDED = -1.0
"""The value of Counters.share while the file has too few records to estimate how many fit."""

_HEADER = struct.Struct("<8s16sQQQI")
_COUNTERS = struct.Struct("<QQd")
_RECORD = struct.Struct("<16sQIIIIII")
RECORD_DTYPE = np.dtype([("key", "V16"), ("offset", "<u8"), ("shape", "<u4", 3), ("rest", "V28")])
"""A dtype that reads the offset and the shape of many slots as one NumPy array."""
_CHECKSUM = struct.Struct("<I")


class DamagedCacheError(Exception):
    """Bytes of a cache file do not match their checksum."""


@dataclass(frozen=True)
class CacheHeader:
    """The header of a cache file, which identifies the job of the file.

    Attributes:
        key: The hash of the data, steps and versions, 16 bytes.
        size: The size of the file in bytes.
        slots: The number of slots in the hash table.
        data_offset: The byte at which the pixels of the first record begin.
        about: Texts that `gpupipe cache` shows: the data, the steps and the engine.
    """

    key: bytes
    size: int
    slots: int
    data_offset: int
    about: dict[str, Any]

    def pack(self) -> bytes:
        text = json.dumps(self.about).encode()
        head = _HEADER.pack(MAGIC, self.key, self.size, self.slots, self.data_offset, len(text))
        return _seal(head + text)

    @classmethod
    def unpack(cls, data: bytes) -> "CacheHeader":
        """Read a header. Raises DamagedCacheError if it is damaged, or of another version."""
        if len(data) < COUNTERS_OFFSET or data[: len(MAGIC)] != MAGIC:
            raise DamagedCacheError("it is no cache file of this version")
        _, key, size, slots, data_offset, length = _HEADER.unpack_from(data)
        if length > COUNTERS_OFFSET - _HEADER.size - _CHECKSUM.size:
            raise DamagedCacheError("its header is damaged")
        text = _open(data[: _HEADER.size + length + _CHECKSUM.size])[_HEADER.size :]
        return cls(key, size, slots, data_offset, json.loads(text))


@dataclass(frozen=True)
class Counters:
    """The counters of a cache file, which tell how full it is.

    Attributes:
        end: The byte at which the last record's pixels end.
        records: The number of used slots.
        share: The share of all samples that the file keeps, 0 to 1; UNDECIDED (-1) while the file
            has too few records to estimate it.
    """

    end: int
    records: int
    share: float

    def pack(self) -> bytes:
        return _seal(_COUNTERS.pack(self.end, self.records, self.share))

    @classmethod
    def unpack(cls, data: bytes) -> "Counters":
        """Read the counters. Raises DamagedCacheError if their checksum does not match."""
        return cls(*_COUNTERS.unpack(_open(data)))


COUNTERS_SIZE = _COUNTERS.size + _CHECKSUM.size


@dataclass(frozen=True)
class Record:
    """The content of a slot, which locates the pixels of one sample.

    Attributes:
        key: The hash that identifies the sample, 16 bytes.
        offset: The byte of the file at which the pixels begin.
        shape: Height, width and number of channels of the pixels.
        size: [height, width] of the whole image after decode, before the steps that follow.
        checksum: CRC-32 of the pixels.
    """

    key: bytes
    offset: int
    shape: tuple[int, int, int]
    size: tuple[int, int]
    checksum: int

    def pack(self) -> bytes:
        fields = _RECORD.pack(self.key, self.offset, *self.shape, *self.size, self.checksum)
        return _seal(fields.ljust(SLOT_SIZE - _CHECKSUM.size, b"\0"))

    @classmethod
    def unpack(cls, data: bytes) -> "Record":
        """Read a slot that is not empty. Raises DamagedCacheError if its checksum is wrong."""
        key, offset, height, width, channels, full_height, full_width, checksum = (
            _RECORD.unpack_from(_open(data))
        )
        return cls(key, offset, (height, width, channels), (full_height, full_width), checksum)


def _seal(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(zlib.crc32(data))


def _open(sealed: bytes) -> bytes:
    """Return the data without its checksum. Raises DamagedCacheError if they do not match."""
    data = sealed[: -_CHECKSUM.size]
    if _CHECKSUM.unpack(sealed[-_CHECKSUM.size :])[0] != zlib.crc32(data):
        raise DamagedCacheError("a checksum does not match")
    return data
