"""The framing of TFRecords: where each record lies, and what is wrong with damaged files."""

import gzip
import struct

import numpy as np
import pytest

from gpupipe.formats import DamagedError
from gpupipe.formats.framing import iter_records
from gpupipe.formats.protobuf import Bytes

crc32c = pytest.importorskip("crc32c", reason="crc32c is not installed")


def masked(content: bytes) -> bytes:
    crc = crc32c.crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(*records: bytes) -> bytearray:
    made = bytearray()
    for record in records:
        length = struct.pack("<Q", len(record))
        made += length + masked(length) + record + masked(record)
    return made


def as_array(data: bytes | bytearray) -> Bytes:
    return np.frombuffer(bytes(data), np.uint8)


def read(data: bytes | bytearray, verify: bool = True) -> list[bytes]:
    """The records of a file, which count from 0."""
    found, numbers = [], []
    for batch in iter_records(as_array(data), verify):
        numbers += batch.record.tolist()
        found += [bytes(data[a:b]) for a, b in zip(batch.begin, batch.end, strict=True)]
    assert numbers == list(range(len(found)))
    return found


@pytest.mark.parametrize("verify", [True, False])
def test_records_are_where_they_were_written(verify: bool) -> None:
    records = [b"", b"a", b"\0" * 300, bytes(range(256))]
    assert read(framed(*records), verify) == records
    assert read(b"", verify) == []


def test_more_records_than_are_found_at_once() -> None:
    records = [str(n).encode() for n in range(4100)]
    assert read(framed(*records), False) == records


def test_a_length_that_is_wrong_is_damage() -> None:
    data = framed(b"first", b"second")
    for place in (21, 21 + 8):
        data[place] ^= 1
        with pytest.raises(DamagedError, match="the checksum of the length at byte 21 is wrong"):
            read(data, False)
        data[place] ^= 1


def test_a_record_that_is_wrong_is_damage_where_it_is_verified() -> None:
    data = framed(b"first", b"second")
    data[21 + 12] ^= 1
    assert read(data, False) == [b"first", b"recond"]
    with pytest.raises(DamagedError, match="record 1, byte 33: the checksum is wrong"):
        read(data, True)


def test_the_records_before_the_end_of_a_file_that_was_cut_off() -> None:
    data = framed(b"first", b"second")
    for cut, words in (
        (1, "ends 1 bytes past"),
        (15, "7 bytes"),
        (19, "3 byte"),
    ):
        with pytest.raises(DamagedError, match=f"cut off.*({words})"):
            read(data[:-cut], False)


def test_a_compressed_file_is_refused() -> None:
    with pytest.raises(ValueError, match="compressed with GZIP"):
        read(gzip.compress(bytes(framed(b"first"))))
