"""Fuzzes the programs of gpupipe._kernels: colours, switches and blends before a geometry that
converts values, erases a window, and delivers to the slots of a batch, of one field or two views.

The images are those of fuzz_geometry. Image and batch lie in memory between pages that nobody may
touch. The batch has to be what the stages make one by one, converted by NumPy, in every variant.
"""

import sys
from pathlib import Path
from typing import Any

import fuzz_geometry
import numpy as np
from fenced_memory import FencedMemory
from numbered_cases import run_cases

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpupipe.runtime.installation import find_extension
from helpers.color_stages import create_stage, draw_changes

_kernels = find_extension()
_LARGEST = 3 * 90
"""The largest side that a geometry makes."""
_OF_MEANS = ("adjust_contrast", "scale_and_shift_by_mean")
"""Changes that differ in the last bit between planes and pixels, and with gaps between rows."""


class Fuzzer(fuzz_geometry.Fuzzer):
    """Makes images and programs by number, and tries them."""

    def __init__(self) -> None:
        super().__init__()
        self._batches = [FencedMemory(_LARGEST**2 * 4 * 8) for _ in range(2)]

    def try_program(self, number: int) -> None:
        """Run a program with all variants, and compare its batches with its stages one by one."""
        image = self.make_image(number, np.random.default_rng([23, number]))
        before = image.copy()
        for name in _kernels.variants():
            _kernels.select(name)
            rng = np.random.default_rng([24, number])
            first, passed_on = draw_first(rng, image)
            create = fuzz_geometry.draw_stage(rng, passed_on)
            made: Any = np.asarray(_kernels.run_stage(create(None), 0, passed_on))
            used = self._batches[: 1 + int(rng.integers(3) == 0)]
            outputs = [draw_output(rng, made, memory) for memory in used]
            ends = [create(output) for output, _ in outputs]
            last = ends[0] if len(ends) == 1 else _kernels.fork_stage(tuple((e, 1) for e in ends))
            if _kernels.run_program(_kernels.program((*first, last)), [0], [image]):
                self.report.findings.append(f"program {number} is not done in {name}")
            for (batch, *_), expected in outputs:
                if batch[0].tobytes() != expected.tobytes():
                    self.report.findings.append(f"program {number} has other values in {name}")
        if not np.array_equal(image, before):
            self.report.findings.append(f"image {number} was overwritten")


def draw_first(rng: np.random.Generator, image: Any) -> tuple[list[Any], Any]:
    """Return stages that pass the image on, and the image after them, made one by one."""
    stages = []
    for _ in range(int(rng.integers(3))):
        branches = tuple(draw_branch(rng, image) for _ in range(int(rng.integers(1, 4))))
        results = [np.asarray(_kernels.run_stage(branch, 0, image)) for branch in branches]
        if image.dtype == np.uint8 and all(result.shape == image.shape for result in results):
            weights = rng.dirichlet(np.ones(len(branches)), 1)
            stages.append(_kernels.blend_stage(weights, branches))
            total = np.zeros(results[0].shape, np.float32)
            for result, weight in zip(results, weights[0], strict=True):
                total += result * np.float32(weight)
            image = np.clip(total, 0, 255).astype(np.uint8)
        else:
            chosen = int(rng.integers(len(branches)))
            stages.append(_kernels.switch_stage(np.array([chosen]), branches))
            image = results[chosen]
    return stages, image


def draw_branch(rng: np.random.Generator, image: Any) -> Any:
    """Return a program of one stage or none, which passes the image on."""
    has_colors, kind = image.shape[2] in (1, 3), rng.integers(4)
    if kind == 0:
        return _kernels.program(())
    if kind == 1 and has_colors:
        is_float = image.dtype == np.float32
        changes = draw_changes(rng, int(rng.integers(1, 5)), is_float=is_float)
        changes = [c for c in changes if not is_float or c[0] not in _OF_MEANS]
        return _kernels.program((create_stage(changes),))
    return _kernels.program((fuzz_geometry.draw_first_stage(rng, image, 5 + int(kind == 2)),))


def draw_output(
    rng: np.random.Generator, image: Any, memory: FencedMemory
) -> tuple[tuple[Any, ...], Any]:
    """Return an output in `memory` for one image (H, W, C), and the values (C, H, W) to expect."""
    height, width, channels = image.shape
    planes, table, factors = image.transpose(2, 0, 1), None, None
    if rng.integers(4):
        factors = np.stack([rng.uniform(0.1, 2, channels) for _ in range(3)]).astype(np.float32)
        if image.dtype == np.float32:
            factors[0] = 1
    scale, mean, std = (None,) * 3 if factors is None else factors[:, :, None, None]
    if factors is not None and image.dtype == np.float32:
        planes = (planes - mean) / std
    elif factors is not None:
        levels = np.arange(256, dtype=np.float32)
        dtype = rng.choice(["float16", "float32", "float64", "uint8"])
        table = ((levels * scale[:, 0] - mean[:, 0]) / std[:, 0]).astype(dtype)
        planes = np.stack([row[plane] for row, plane in zip(table, planes, strict=True)])
        factors = factors if dtype in ("float16", "float32") and rng.integers(2) else None
    expected = np.array(planes, order="C")
    windows, value = rng.integers(-9, 99, (1, 4)), None
    if rng.integers(2):
        value = rng.uniform(0, 255, channels).astype(expected.dtype)
        top, left = (int(n) for n in np.clip(windows[0, :2], 0, (height, width)))
        bottom, right = (int(n) for n in windows[0, :2] + windows[0, 2:])
        expected[:, top : max(bottom, top), left : max(right, left)] = value[:, None, None]
    shape = (1, height, width, channels) if rng.integers(2) else (1, *expected.shape)
    size = expected.nbytes
    room = memory.take((size,), is_last=bool(rng.integers(2))).view(expected.dtype).reshape(shape)
    batch = room if shape[1:] == expected.shape else room.transpose(0, 3, 1, 2)
    room[:] = 0
    erase = (None, None) if value is None else (windows, value)
    return (batch, table, factors, *erase), expected


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_program))
