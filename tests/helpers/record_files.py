"""Writes MXNet's .rec files, and says what those in tests/data hold."""

import json
import struct
from pathlib import Path

import numpy as np

RECORDS = Path(__file__).parents[1] / "data" / "records"
TOLD = json.loads((RECORDS / "records.json").read_text())
MAGIC = 0xCED7230A


def packed(label: float | list[float], content: bytes, id: int = 0) -> bytes:
    """An image record, as mxnet.recordio.pack makes it."""
    if isinstance(label, list):
        return (
            struct.pack("<IfQQ", len(label), 0, id, 0) + np.array(label, "<f4").tobytes() + content
        )
    return struct.pack("<IfQQ", 0, label, id, 0) + content


def part(content: bytes, flag: int = 0) -> bytes:
    return struct.pack("<II", MAGIC, flag << 29 | len(content)) + content + bytes(-len(content) % 4)


def written(file: Path, *payloads: bytes, listed: bool = False) -> Path:
    """A .rec file as MXNet writes it, magic numbers in payloads included; listed: with its .idx."""
    out, places = bytearray(), []
    for payload in payloads:
        places.append(len(out))
        cuts = [
            i
            for i in range(0, len(payload) - 3, 4)
            if payload[i : i + 4] == MAGIC.to_bytes(4, "little")
        ]
        pieces = [
            payload[a:b]
            for a, b in zip([0, *(c + 4 for c in cuts)], [*cuts, len(payload)], strict=True)
        ]
        flags = [0] if len(pieces) == 1 else [1, *[2] * (len(pieces) - 2), 3]
        out += b"".join(map(part, pieces, flags))
    file.write_bytes(bytes(out))
    if listed:
        file.with_suffix(".idx").write_text(
            "".join(f"{n}\t{place}\n" for n, place in enumerate(places))
        )
    return file
