"""The bytes of a cache of decoded images."""

import pytest

from gpupipe.decoded_cache.layout import (
    COUNTERS_OFFSET,
    COUNTERS_SIZE,
    MAGIC,
    RECORD_DTYPE,
    SLOT_SIZE,
    CacheHeader,
    Counters,
    DamagedCacheError,
    Record,
)

HEADER = CacheHeader(b"k" * 16, 1 << 30, 64, 8192, {"root": "/größe", "steps": ["decode"]})
RECORD = Record(b"r" * 16, 8192, (480, 640, 3), (960, 1280), 0xDEADBEEF)
COUNTERS = Counters(12_345, 7, 0.25)


def changes(packed: bytes) -> list[bytes]:
    return [
        packed[:place] + bytes([packed[place] ^ 4]) + packed[place + 1 :]
        for place in range(len(packed))
    ]


def test_what_is_packed_is_unpacked() -> None:
    padded = HEADER.pack().ljust(COUNTERS_OFFSET, b"\0")
    assert CacheHeader.unpack(padded) == HEADER
    assert Record.unpack(RECORD.pack()) == RECORD
    assert Counters.unpack(COUNTERS.pack()) == COUNTERS
    assert len(RECORD.pack()) == SLOT_SIZE
    assert len(COUNTERS.pack()) == COUNTERS_SIZE


def test_numpy_reads_the_fields_that_are_searched_for() -> None:
    import numpy as np

    (slot,) = np.frombuffer(RECORD.pack(), RECORD_DTYPE)
    assert (slot["offset"], tuple(slot["shape"])) == (RECORD.offset, RECORD.shape)


def test_a_change_of_any_byte_is_noticed() -> None:
    for changed in changes(RECORD.pack()):
        with pytest.raises(DamagedCacheError):
            Record.unpack(changed)
    for changed in changes(COUNTERS.pack()):
        with pytest.raises(DamagedCacheError):
            Counters.unpack(changed)
    for changed in changes(HEADER.pack()):
        with pytest.raises(DamagedCacheError):
            CacheHeader.unpack(changed.ljust(COUNTERS_OFFSET, b"\0"))


def test_what_is_no_cache_file_is_refused() -> None:
    for data in (b"", MAGIC, b"x" * COUNTERS_OFFSET, MAGIC + b"\xff" * COUNTERS_OFFSET):
        with pytest.raises(DamagedCacheError):
            CacheHeader.unpack(data)
