"""Fuzzes the geometry of gpupipe._kernels: random warps, resizes, flips, crops, borders, erased
windows and swapped axes of random images.

Images have 1 to 4 channels of uint8 or float32, and are pixels or planes. They lie in memory
between pages that nobody may touch, and must stay as they are. All variants have to make the same
values, and those of an image and of a batch have to be equal.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory
from numbered_cases import Report, run_cases

from gpupipe.runtime.installation import find_extension

_kernels = find_extension()
_MAX_SIDE = 90


class Fuzzer:
    """Makes images and stages by number, and tries them."""

    def __init__(self) -> None:
        self.report = Report()
        self._memory = FencedMemory(16 * _MAX_SIDE * (_MAX_SIDE + 8))

    def make_image(self, number: int, rng: np.random.Generator) -> Any:
        """Return an image (H, W, C) whose memory ends where it ends."""
        height, width, channels = map(int, rng.integers(1, [_MAX_SIDE, _MAX_SIDE, 5]))
        dtype, gap = rng.choice(["uint8", "float32"]), int(rng.choice([0, rng.integers(8)]))
        shape = (height, width + gap, channels)
        if is_planar := rng.integers(2) == 0:
            shape = (channels, height, width + gap)
        size = int(np.prod(shape)) - gap * (1 if is_planar else channels)
        room = self._memory.take((size * np.dtype(dtype).itemsize,), is_last=number % 4 != 1)
        values = room.view(dtype)
        values[:] = rng.integers(0, 256, size)
        item, row = values.itemsize, (width + gap) * (1 if is_planar else channels)
        strides = (row * item, item * (1 if is_planar else channels), item)
        if is_planar:
            strides = (row * item, item, row * height * item)
        return np.lib.stride_tricks.as_strided(values, (height, width, channels), strides)

    def try_image(self, number: int) -> None:
        """Run a stage with all variants, to an image and to a batch, and compare the results."""
        rng = np.random.default_rng([21, number])
        image = self.make_image(number, rng)
        before, results = image.copy(), {}
        for name in _kernels.variants():
            _kernels.select(name)
            draws = np.random.default_rng([22, number])
            create = draw_stage(draws, image)
            own: Any = np.asarray(_kernels.run_stage(create(None), 0, image))
            results[name] = own
            is_planar = draws.integers(2) == 0
            shape = own.transpose(2, 0, 1).shape if is_planar else own.shape
            batch = np.zeros((1, *shape), own.dtype)
            place = batch if is_planar else batch.transpose(0, 3, 1, 2)
            if _kernels.run_program(create((place, None, None)), [0], [image]):
                self.report.findings.append(f"image {number} is not done in {name}")
            if place[0].transpose(1, 2, 0).tobytes() != own.tobytes():
                self.report.findings.append(f"image {number} is another in a batch in {name}")
            is_done = fill_unequal_slots(draws, create, image, own)
            if not is_done:
                self.report.findings.append(f"image {number} is another in its slot in {name}")
        if not np.array_equal(image, before):
            self.report.findings.append(f"image {number} was overwritten")
        for name, pixels in results.items():
            if pixels.tobytes() != results["scalar"].tobytes():
                self.report.findings.append(f"image {number} has other values in {name}")


def fill_unequal_slots(
    rng: np.random.Generator, create: Any, image: Any, expected: NDArray[Any]
) -> bool:
    """Return whether a stage writes an image to a flat slot, and to one that it pads with zeros."""
    height, width, channels = expected.shape
    sizes, is_interleaved = np.array([[height, width]]), bool(rng.integers(2))
    flat = np.empty(expected.size, expected.dtype)
    padded = np.ones((1, channels, *rng.integers([height, width], [height + 9, width + 9])))
    padded = padded.astype(expected.dtype)
    for array in (flat, padded):
        slots = array, sizes, channels, is_interleaved
        if _kernels.run_program(create((slots, None, None)), [0], [image]):
            return False
    planes = expected.transpose(2, 0, 1)
    clear = np.zeros_like(padded)
    clear[0, :, :height, :width] = planes
    in_flat = expected if is_interleaved and channels > 1 else planes
    return flat.tobytes() == in_flat.tobytes() and padded.tobytes() == clear.tobytes()


def draw_stage(rng: np.random.Generator, image: Any) -> Any:
    """Return a function that returns a stage for an output."""
    height, width, channels = image.shape
    flips = rng.integers(0, 2, (1, 2)).astype(np.uint8)
    size = rng.integers(1, _MAX_SIDE, (1, 2))
    kind = rng.integers(10)
    if kind in (6, 8, 9):
        return draw_border(rng, image, kind, flips)
    if kind >= 5:
        first = draw_first_stage(rng, image, kind)
        return lambda output: _kernels.program((first, _kernels.deliver_stage(flips, output)))
    if kind == 0:
        return lambda output: _kernels.deliver_stage(flips, output)
    if kind == 1:
        top, left = rng.integers(0, [height, width])
        window = np.array([[top, left, height - top, width - left]])
        crop = _kernels.crop_stage(window)
        return lambda output: _kernels.program((crop, _kernels.deliver_stage(flips, output)))
    if kind == 2:
        corner = rng.integers(0, size)
        window = np.concatenate([corner, size - corner], 1)
        options = bool(rng.integers(2)), bool(rng.integers(2))
        return lambda output: _kernels.resize_stage(size, window, flips, *options, output)
    rows = int(rng.integers(2, 4))
    matrix = rng.normal(0, 0.4, (1, rows, 3)) + np.eye(3)[:rows]
    matrix[:, :2, 2] *= _MAX_SIDE / 4
    matrix[:, 2:, :2] /= _MAX_SIDE
    is_nearest = image.itemsize == 1 and rng.integers(2) == 0
    fill = rng.uniform(0, 255, channels) if rng.integers(2) == 0 else None
    return lambda output: _kernels.warp_stage(matrix, size, is_nearest, fill, output)


def draw_first_stage(rng: np.random.Generator, image: Any, kind: int) -> Any:
    """Return a stage that passes the image on."""
    if kind == 5:
        return _kernels.transpose_stage()
    corner = rng.integers(0, image.shape[:2])
    window = np.concatenate([corner, image.shape[:2] - corner])[None]
    return _kernels.erase_stage(window, draw_pixel(rng, image))


def draw_border(rng: np.random.Generator, image: Any, kind: int, flips: Any) -> Any:
    """Return a function that returns a stage which adds borders and flips, for an output.

    With kind 9, it resizes to nearest pixels before.
    """
    if kind == 9:
        size = rng.integers(1, _MAX_SIDE, (1, 2))
        window = np.concatenate([rng.integers(-_MAX_SIDE, _MAX_SIDE, 2), size[0]])[None]
        whole = size[:, ::-1].copy()
        create = partial(_kernels.nearest_stage, whole, window, draw_pixel(rng, image))
    elif kind == 6:
        mode = str(rng.choice(["edge", "reflect", "symmetric"]))
        create = partial(_kernels.pad_stage, rng.integers(0, _MAX_SIDE, (1, 4)), mode)
    else:
        corner = rng.integers(0, image.shape[:2])
        window = np.concatenate([corner, image.shape[:2] - corner])[None]
        window[:, :2] += rng.integers(-_MAX_SIDE, _MAX_SIDE, 2)
        create = partial(_kernels.window_stage, window, draw_pixel(rng, image))
    if rng.integers(2) == 0:
        return partial(create, flips)
    passed_on = create(None, None)
    return lambda output: _kernels.program((passed_on, _kernels.deliver_stage(flips, output)))


def draw_pixel(rng: np.random.Generator, image: Any) -> bytes:
    return rng.integers(0, 256, image.shape[2]).astype(image.dtype).tobytes()


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_image))
