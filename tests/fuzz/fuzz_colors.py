"""Fuzzes the colours of the extension gpupipe._kernels with random changes of random images.

The image lies in memory between pages that nobody may touch, and must stay as it is. All variants
have to make the same pixels. Changes other than a blur have to make those of torchvision.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory
from numbered_cases import Report, run_cases

from gpupipe.runtime.installation import find_extension
from helpers.color_stages import Change, change, draw_changes, reference

_kernels = find_extension()
_MAX_SIDE = 300
_MAX_WIDTH = 3000
"""That of images of few rows: more than a part of a row that is changed at once."""


@dataclass
class ColorReport(Report):
    """What a run found.

    Attributes:
        changes: Changes of all images.
    """

    changes: int = 0


class Fuzzer:
    """Makes images and changes by number, and tries them."""

    def __init__(self) -> None:
        self.report = ColorReport()
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
        self.report.changes += len(changes)
        if not np.array_equal(image, before):
            self.report.findings.append(f"image {number} was overwritten")
        if all(name != "gaussian_blur" for name, *_ in changes):
            results["torchvision"] = reference(before, changes)
        for name, pixels in results.items():
            if not np.array_equal(pixels, results["scalar"]):
                self.report.findings.append(f"image {number} has other pixels in {name}: {changes}")


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_image))
