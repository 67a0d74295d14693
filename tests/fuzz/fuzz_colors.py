"""Fuzzes the colours of the extension gpupipe._kernels with random changes of random images.

Images are of uint8 or float32, and pixels or planes. They lie in memory between pages that nobody
may touch, and must stay as they are. All variants have to make the same pixels. Changes of uint8
other than a blur have to make those of torchvision.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        self._memory = FencedMemory(12 * (_MAX_SIDE * (_MAX_SIDE + 20) + _MAX_WIDTH * 8))

    def make(self, number: int) -> tuple[NDArray[Any], list[Change]]:
        """Return the image and the changes of a number; the same always."""
        rng = np.random.default_rng([20, number])
        is_wide = rng.integers(8) == 0
        height = int(rng.integers(1, 8 if is_wide else _MAX_SIDE))
        width = int(rng.integers(1, _MAX_WIDTH if is_wide else 4 + _MAX_SIDE // (1 + number % 5)))
        channels = int(rng.choice([1, 3]))
        gap = int(rng.choice([0, rng.integers(20)]))
        dtype = np.dtype(rng.choice(["uint8", "float32"]))
        is_planar, item = rng.integers(2) == 0, dtype.itemsize
        stride = width * (1 if is_planar else channels) + gap
        strides = (stride, channels, 1)
        if is_planar:
            strides = (stride, 1, stride * height)
        size = stride * height * (channels if is_planar else 1) - gap
        room = self._memory.take((size * item,), is_last=number % 4 != 1).view(dtype)
        room[:] = rng.integers(0, 256, size, np.uint8) >> int(rng.integers(4))
        if dtype == np.float32:
            room /= np.float32(rng.choice([100, 255, 400]))
        image = np.lib.stride_tricks.as_strided(
            room, (height, width, channels), tuple(item * n for n in strides)
        )
        has_blur, is_float = min(height, width) > 6, dtype == np.float32
        return image, draw_changes(rng, int(rng.integers(1, 9)), has_blur, is_float)

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
        is_exact = image.dtype == np.uint8 and all(n != "gaussian_blur" for n, *_ in changes)
        if is_exact:
            results["torchvision"] = reference(before, changes)
        for name, pixels in results.items():
            if not np.array_equal(pixels, results["scalar"], equal_nan=True):
                self.report.findings.append(f"image {number} has other pixels in {name}: {changes}")


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_image))
