"""Fuzzes the region decoding of the extension gpupipe._jpeg with damaged JPEGs.

The file and the pixels lie in memory between pages that nobody may touch. A window that is decoded
has to have the pixels of torchvision's decode of the whole file, also as a stage of a program. A
file that is refused goes to other decoders, and is no finding. Memory has to stay, and no file may
take a second.
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

from gpupipe.runtime.installation import find_extension
from helpers.jpeg_kinds import (
    damaged,
    decode_whole,
    draw_window,
    is_one_scan,
    one_scan,
    several_scans,
)

_jpeg = find_extension("_jpeg")
_kernels = find_extension()
_MAX_PIXELS = 1_000_000
_MAX_FILE = 1 << 20
_MAX_SECONDS = 1.0
_MAX_GROWTH_MIB = 128.0
"""A decoder that is not freed takes 50 KiB: 4 GiB for the files that 10 minutes refuse. The other
decoders, and AddressSanitizer's quarantine, take some tens of MiB.
"""
_WARM_UP = 20_000
_SEEDS = 40


@dataclass
class RegionReport(Report):
    """What a run found.

    Attributes:
        tried: Files that the engine would hand to the extension.
        decoded: Those of which a window was decoded.
        slowest: The longest time of one, in seconds.
        growth_mib: By how much the memory of the process grew after the first files.
    """

    tried: int = 0
    decoded: int = 0
    slowest: float = 0.0
    growth_mib: float = 0.0


class Fuzzer:
    """Makes files by number, and tries them."""

    def __init__(self) -> None:
        self.report, self._warm_mib = RegionReport(), 0.0
        self._file, self._pixels = FencedMemory(_MAX_FILE), FencedMemory(3 * _MAX_PIXELS)
        sizes = np.random.default_rng(5).integers(1, 130, (_SEEDS, 2)).tolist()
        self._seeds = [
            content
            for n, (height, width) in enumerate(sizes)
            for _, content in (*one_scan((height, width), n), *several_scans((height, width)))
        ]

    def make(self, number: int) -> bytes:
        """Return the file of a number; the same always."""
        rng = np.random.default_rng([18, number])
        if number % 4 == 0:
            (mutant,) = mutants([number // 4 * len(FORMATS)], _MAX_PIXELS)
            return mutant.content
        content = self._seeds[int(rng.integers(len(self._seeds)))]
        for _ in range(int(rng.integers(1, 4))):
            content = damaged(content, rng) if len(content) > 2 else content
        return content

    def try_file(self, number: int) -> None:
        """Decode a window of a file, and compare it with a whole decode."""
        if self.report.cases == _WARM_UP:
            self._warm_mib = memory_mib()
        content, rng, report = self.make(number), np.random.default_rng([19, number]), self.report
        if len(content) > _MAX_FILE:
            return
        data = self._file.take((len(content),), is_last=number % 8 != 1)
        data[:] = np.frombuffer(content, np.uint8)
        size = is_one_scan(data)
        if size is None:
            return
        report.tried += 1
        mode, channels = (("rgb", 3), ("gray", 1))[int(rng.integers(4) == 0)]
        top, left, height, width = draw_window(size, rng)
        pixels = self._pixels.take((*size, channels), is_last=bool(rng.integers(2)))
        started = time.perf_counter()
        is_decoded = _jpeg.decode(data, pixels, top, left, height, width)
        took = time.perf_counter() - started
        report.slowest = max(report.slowest, took)
        window = np.array([[top, left, height, width]])
        stage = _jpeg.decode_stage(np.array([size]), window, channels)
        result = _kernels.run_stage(_kernels.program((stage, _kernels.crop_stage(window))), 0, data)
        if (result is not None) != is_decoded:
            report.findings.append(f"file {number} is decoded by a function or a stage alone")
        if took > _MAX_SECONDS:
            report.findings.append(f"file {number} took {took:.1f} s")
        if not is_decoded:
            return
        report.decoded += 1
        if not np.array_equal(result, pixels[top : top + height, left : left + width]):
            report.findings.append(f"file {number} has other pixels in a program")
        whole, rows, columns = decode_whole(data, mode), slice(top, top + height), slice(left, None)
        if whole is None:
            report.findings.append(f"file {number} is refused by the decoder of whole images")
        elif not np.array_equal(pixels[rows, columns][:, :width], whole[rows, columns][:, :width]):
            report.findings.append(f"file {number} has other pixels than a whole decode")

    def check_memory(self) -> None:
        """Find whether the process has grown since the first files."""
        if self._warm_mib:
            self.report.growth_mib = memory_mib() - self._warm_mib
        if self.report.growth_mib > _MAX_GROWTH_MIB:
            self.report.findings.append(f"memory grew by {self.report.growth_mib:.0f} MiB")


def memory_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_file, fuzzer.check_memory))
