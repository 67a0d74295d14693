"""Fuzzes the extension gpupipe._png with damaged PNGs.

The file and the pixels lie in memory between pages that nobody may touch. A file that is decoded
has to have Pillow's pixels, also as a stage of a program, and the header that the parser of headers
reads. A file that is refused goes to other decoders, and is no finding. Memory has to stay, and no
file may take a second.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory
from image_mutants import FORMATS, mutants
from numbered_cases import Report, run_cases

from gpupipe.decoders.image_header import PlainFormats, read_header, read_plain_sizes
from gpupipe.runtime.installation import find_extension
from helpers.png_kinds import MODES, decode_with_pillow, join, make_chunk, make_kinds, split

_png, _kernels = find_extension("_png"), find_extension()
_MAX_PIXELS = 1_000_000
_MAX_FILE = 1 << 20
_MAX_SECONDS = 1.0
_MAX_GROWTH_MIB = 128.0
_WARM_UP = 20_000
_PNG = FORMATS.index("PNG")


@dataclass
class PngReport(Report):
    """What a run found.

    Attributes:
        plain: Files that the engine would hand to the extension.
        decoded: Those that were decoded.
        slowest: The longest time of one, in seconds.
        growth_mib: By how much the memory of the process grew after the first files.
    """

    plain: int = 0
    decoded: int = 0
    slowest: float = 0.0
    growth_mib: float = 0.0


class Fuzzer:
    """Makes files by number, and tries them."""

    def __init__(self) -> None:
        self.report, self._warm_mib = PngReport(), 0.0
        self._file, self._pixels = FencedMemory(_MAX_FILE), FencedMemory(3 * _MAX_PIXELS)
        sizes = np.random.default_rng(5).integers(1, 130, (12, 2)).tolist()
        self._seeds = [
            content
            for n, (height, width) in enumerate(sizes)
            for content in make_kinds(height, width, n).values()
        ]

    def make(self, number: int) -> bytes:
        """Return the file of a number; the same always."""
        rng = np.random.default_rng([25, number])
        if number % 2:
            (mutant,) = mutants([number * len(FORMATS) + _PNG], _MAX_PIXELS)
            return mutant.content
        content = self._seeds[int(rng.integers(len(self._seeds)))]
        return damage(content, rng) if number % 16 else content

    def try_file(self, number: int) -> None:
        """Decode a file, and compare it with Pillow's pixels."""
        if self.report.cases == _WARM_UP:
            self._warm_mib = memory_mib()
        content, rng, report = self.make(number), np.random.default_rng([26, number]), self.report
        if not 0 < len(content) <= _MAX_FILE:
            return
        data = self._file.take((len(content),), is_last=number % 8 < 6)
        data[:] = np.frombuffer(content, np.uint8)
        started = time.perf_counter()
        is_plain = _png.is_plain(data)
        ((height, width),) = read_plain_sizes([data], PlainFormats.PNG).tolist()
        if is_plain != (height > 0):
            report.findings.append(f"file {number} is plain for one extension alone")
        if not is_plain or height * width > _MAX_PIXELS:
            return
        report.plain += 1
        header = read_header(data)
        if not header.is_plain or (header.height, header.width) != (height, width):
            report.findings.append(f"file {number} has another header")
        mode = ("rgb", "gray")[int(rng.integers(2))]
        pixels = self._pixels.take((height, width, MODES[mode]), is_last=bool(rng.integers(4)))
        is_decoded = _png.decode(data, pixels)
        took = time.perf_counter() - started
        report.slowest = max(report.slowest, took)
        if took > _MAX_SECONDS:
            report.findings.append(f"file {number} took {took:.1f} s")
        stage = _png.decode_stage(np.array([[height, width]]), MODES[mode])
        result = _kernels.run_stage(stage, 0, data)
        if (result is not None) != is_decoded:
            report.findings.append(f"file {number} is decoded by a function or a stage alone")
        if not is_decoded:
            return
        report.decoded += 1
        if not np.array_equal(result, pixels):
            report.findings.append(f"file {number} has other pixels in a program")
        expected = decode_with_pillow(content, mode)
        if expected is None:
            report.findings.append(f"file {number} is refused by Pillow")
        elif not np.array_equal(pixels, expected):
            report.findings.append(f"file {number} has other pixels than Pillow's")

    def check_memory(self) -> None:
        """Find whether the process has grown since the first files."""
        if self._warm_mib:
            self.report.growth_mib = memory_mib() - self._warm_mib
        if self.report.growth_mib > _MAX_GROWTH_MIB:
            self.report.findings.append(f"memory grew by {self.report.growth_mib:.0f} MiB")


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a PNG with a chunk that is changed, and has the right checksum again; or that is cut,
    doubled, or in another place.
    """
    chunks = split(content)
    n = int(rng.integers(len(chunks)))
    name, own = chunks[n][4:8], bytearray(chunks[n][8:-4])
    kind = rng.integers(5)
    if kind == 0:
        chunks.insert(int(rng.integers(len(chunks) + 1)), chunks.pop(n))
    elif kind == 1:
        chunks.insert(n, chunks[n])
    elif kind == 2:
        chunks[n] = make_chunk(name, bytes(own[: int(rng.integers(len(own) + 1))]))
    elif kind == 3:
        parts = own[: len(own) // 2], own[len(own) // 2 :]
        chunks[n : n + 1] = [make_chunk(name, bytes(part)) for part in parts]
    else:
        for _ in range(int(rng.integers(1, 4)) if own else 0):
            own[int(rng.integers(len(own)))] = int(rng.integers(256))
        chunks[n] = make_chunk(name, bytes(own))
    return join(*chunks)


def memory_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_file, fuzzer.check_memory))
