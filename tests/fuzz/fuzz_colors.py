"""Fuzzes the colours of the extension gpupipe._kernels with random changes of random images.

    # 10 minutes; `make sanitize` runs it with the extension under AddressSanitizer
    python tests/fuzz/fuzz_colors.py --seconds 600
    python tests/fuzz/fuzz_colors.py --first 123456 --count 1  # one case again

The image lies in memory between pages that nobody may touch, and must stay as it is. All variants
have to make the same pixels. Changes other than a blur have to make those of torchvision.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory

from gpupipe.runtime.installation import find_extension
from helpers.color_stages import Change, change, draw_changes, reference

_kernels = find_extension()
_MAX_SIDE = 300
_MAX_WIDTH = 3000
"""That of images of few rows: more than a part of a row that is changed at once."""
_HANG_SECONDS = 60


@dataclass
class Report:
    """What a run found.

    Attributes:
        images: Images that were changed.
        changes: Changes of all of them.
        findings: What is wrong, with the number of the image.
    """

    images: int = 0
    changes: int = 0
    findings: list[str] = field(default_factory=list)


class Fuzzer:
    """Makes images and changes by number, and tries them."""

    def __init__(self) -> None:
        self.report = Report()
        self._memory = FencedMemory(3 * (_MAX_SIDE * (_MAX_SIDE + 20) + _MAX_WIDTH * 8))

    def make(self, number: int) -> tuple[NDArray[np.uint8], list[Change]]:
        """Return the image and the changes of a number; the same always."""
        rng = np.random.default_rng([20, number])
        is_wide = rng.integers(8) == 0
        height = int(rng.integers(1, 8 if is_wide else _MAX_SIDE))
        width = int(rng.integers(1, _MAX_WIDTH if is_wide else 4 + _MAX_SIDE // (1 + number % 5)))
        channels = int(rng.choice([1, 3]))
        gap = int(rng.choice([0, rng.integers(20)]))
        stride = width * channels + gap
        room = self._memory.take((height * stride - gap,), is_last=number % 4 != 1)
        room[:] = rng.integers(0, 256, len(room), np.uint8) >> int(rng.integers(4))
        strides = (stride, channels, 1)
        image = np.lib.stride_tricks.as_strided(room, (height, width, channels), strides)
        return image, draw_changes(rng, int(rng.integers(1, 9)), has_blur=min(height, width) > 6)

    def try_image(self, number: int) -> None:
        """Change an image with all variants, and compare the results."""
        image, changes = self.make(number)
        before, results = image.copy(), {}
        for name in _kernels.variants():
            _kernels.select(name)
            results[name] = change(image, changes)
        self.report.images += 1
        self.report.changes += len(changes)
        if not np.array_equal(image, before):
            self.report.findings.append(f"image {number} was overwritten")
        if all(name != "gaussian_blur" for name, *_ in changes):
            results["torchvision"] = reference(before, changes)
        for name, pixels in results.items():
            if not np.array_equal(pixels, results["scalar"]):
                self.report.findings.append(f"image {number} has other pixels in {name}: {changes}")

    def run(self, first: int, count: int | None, seconds: float) -> Report:
        """Try images from number `first` on until `count` are done or the time is over."""
        end, number = time.monotonic() + seconds, first
        while (number < first + count) if count is not None else time.monotonic() < end:
            faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
            self.try_image(number)
            number += 1
        faulthandler.cancel_dump_traceback_later()
        return self.report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="(default: %(default)s)")
    parser.add_argument("--count", type=int, help="so many images, in place of --seconds")
    parser.add_argument("--first", type=int, default=0, help="the number of the first image")
    arguments = parser.parse_args()
    faulthandler.enable()
    report = Fuzzer().run(arguments.first, arguments.count, arguments.seconds)
    print(json.dumps(asdict(report), indent=1))
    return bool(report.findings)


if __name__ == "__main__":
    sys.exit(main())
