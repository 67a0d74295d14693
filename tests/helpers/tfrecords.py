"""TFRecord files that tests write, and those that TensorFlow wrote."""

import json
import struct
from pathlib import Path

import numpy as np
from crc32c import crc32c

from gpupipe.sources.tfrecord import Tfrecord

RECORDS = Path(__file__).parents[1] / "data" / "records"


TOLD = json.loads((RECORDS / "records.json").read_text())


REAL = RECORDS / "tensorflow.tfrecord"


STEPS = ["decode", {"resize": {"size": [20, 20]}}]


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(*records: bytes) -> bytes:
    lengths = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(
        length + masked(length) + record + masked(record)
        for length, record in zip(lengths, records, strict=True)
    )


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, in the wire format."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(n: int) -> bytes:
    n &= 2**64 - 1
    return bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80]) + varint(n >> 7)


def entry(name: str, feature: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, feature))


def record(*entries: bytes) -> bytes:
    return field(1, b"".join(entries))


def images(content: bytes) -> bytes:
    return entry("image/encoded", field(1, field(1, content)))


def written(path: Path, *records: bytes) -> Tfrecord:
    path.write_bytes(framed(*records))
    return Tfrecord(shards=str(path), label=None)


FLOATS = np.array([1.5, -2.0], "<f4").tobytes()
