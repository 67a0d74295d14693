"""Fuzzes `read_plain_sizes`, of JPEGs, and `compute_crc32s` of gpupipe._kernels with image files.

The files are those of image_mutants.py and damaged JPEGs. They lie in memory between pages that
nobody may touch. The sizes have to be those of the parser in Python, and the CRCs those of zlib.
"""

import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory
from image_mutants import chunks, mutants
from image_seeds import Seed
from numbered_cases import Report, run_cases

from gpupipe.decoders.image_header import PlainFormats, read_header
from gpupipe.runtime.installation import find_extension
from helpers.jpeg_kinds import damaged, one_scan, several_scans

_kernels = find_extension()
_MAX_BYTES = 1 << 20
_SEGMENTS = (
    (0xE0, b"JFIF\0\1\1\0\0\1\0\1\0"),
    (0xE1, b"Exif\0\0"),
    (0xEE, b"Adobe\0\x64\0\0\0\0"),
    (0xFE, b"Adobe"),
    (0xC1, b""),
    (0x01, b"JFIF"),
)
"""Markers of segments, and what these begin with."""


@dataclass
class HeaderReport(Report):
    """What a run found.

    Attributes:
        sizes: Files of which the extension read the size.
    """

    sizes: int = 0


class Fuzzer:
    """Makes files by number, and reads their headers."""

    def __init__(self) -> None:
        self.report = HeaderReport()
        self._memory = FencedMemory(_MAX_BYTES)
        sides = [(8, 8), (33, 70), (300, 5)]
        kinds = [pair for size in sides for pair in (*one_scan(size), *several_scans(size))]
        self._jpegs = [content for _, content in kinds]

    def try_case(self, number: int) -> None:
        """Compare the header and the CRC of a file, and of parts of it."""
        rng = np.random.default_rng([45, number])
        content = self._make(number, rng)[:_MAX_BYTES]
        end = min(read_header(content).end, len(content))
        cuts = [len(content), end, max(end - 1, 0), *rng.integers(0, len(content) + 1, 3).tolist()]
        for length in cuts:
            memory = self._memory.take((length,), is_last=bool(rng.integers(4)))
            memory[:] = np.frombuffer(content[:length], np.uint8)
            (size,) = np.frombuffer(
                _kernels.read_plain_sizes([memory], PlainFormats.JPEG), np.int64
            ).reshape(-1, 2)
            if size.tolist() != find_size(content[:length]):
                self.report.findings.append(f"case {number}: {length} bytes: {size.tolist()}")
            self.report.sizes += bool(size.all())
            part = memory[int(rng.integers(0, min(length, 70) + 1)) :]
            if _kernels.compute_crc32s([memory, part]) != [zlib.crc32(memory), zlib.crc32(part)]:
                self.report.findings.append(f"case {number}: {length} bytes have another CRC")

    def _make(self, number: int, rng: np.random.Generator) -> bytes:
        if number % 16 == 0:
            (mutant,) = mutants([number // 16], 1_000_000)
            return mutant.content
        content = self._jpegs[int(rng.integers(len(self._jpegs)))]
        if number % 4 == 2:
            return rearrange(content, rng)
        for _ in range(int(rng.integers(3))):
            content = damaged(content, rng)
        if number % 4 == 1:  # damage where the header is
            head = bytearray(content)
            for at in (
                rng.integers(2, min(len(head), 700), int(rng.integers(1, 4)))
                if len(head) > 2
                else ()
            ):
                head[at] = int(rng.choice([0, 1, 2, 0xFF, 0xC0, 0xDA, 0xE1, rng.integers(256)]))
            content = bytes(head)
        return content


def rearrange(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a JPEG with segments more, fewer, in another order, or of another length."""
    parts = chunks(Seed("JPEG", content))
    for _ in range(int(rng.integers(1, 4))):
        at, kind = int(rng.integers(1, len(parts))), int(rng.integers(5))
        part = parts[at]
        if kind == 0 and len(parts) > 2:
            del parts[at]
        elif kind == 1:
            parts.insert(int(rng.integers(1, len(parts) + 1)), part)
        elif kind == 2:
            length = max(int.from_bytes(part[2:4], "big") + int(rng.integers(-3, 4)), 0)
            length = int(rng.choice([0, 1, 2, 14, length]))
            parts[at] = part[:2] + length.to_bytes(2, "big") + part[4:]
        else:
            marker, begin = _SEGMENTS[int(rng.integers(len(_SEGMENTS)))]
            text = begin + bytes(rng.integers(3, size=rng.integers(5)).tolist())
            parts.insert(at, bytes([0xFF, marker]) + (len(text) + 2).to_bytes(2, "big") + text)
    return b"".join(parts)


def find_size(content: bytes) -> list[int]:
    """Return [height, width] of a plain JPEG of one scan without EXIF; [0, 0] of all others."""
    header = read_header(content)
    is_plain = header.is_plain and header.format == "JPEG" and header.end > 0
    if not is_plain or has_exif(content[: header.end]):
        return [0, 0]
    return [header.height, header.width]


def has_exif(head: bytes) -> bool:
    """Return whether a segment before the scan holds EXIF."""
    at = 2
    while head[at + 1] != 0xDA:
        if head[at + 1] == 0xE1 and head[at + 4 : at + 10] == b"Exif\0\0":
            return True
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return False


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_case))
