"""Fuzzes the function `convert_planes` of gpupipe._kernels, and what its programs take as images.

Images and targets of all dtypes, gaps and directions lie in memory between pages that nobody may
touch. Each byte of the target's memory has to be that of NumPy, also in its gaps. Arrays that are
no images have to be left to Python, and arguments that do not fit together refused.
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
from wrong_arrays import draw_wrong, is_refused, misalign

from gpupipe.runtime.installation import find_extension

_kernels = find_extension()
_MAX_SIDE, _MAX_BATCH = 60, 4
_MAX_BYTES = 8 * 4 * _MAX_BATCH * 2 * (_MAX_SIDE + 8) ** 2
_WHOLE = _kernels.program(())


@dataclass
class ConversionReport(Report):
    """What a run found.

    Attributes:
        images: Arrays that were taken as images.
    """

    images: int = 0


class Fuzzer:
    """Makes images and targets by number, and tries them."""

    def __init__(self) -> None:
        self.report = ConversionReport()
        self._source, self._target = FencedMemory(_MAX_BYTES), FencedMemory(_MAX_BYTES)

    def try_case(self, number: int) -> None:
        """Convert a batch, refuse a wrong one, and pass on an array."""
        rng = np.random.default_rng([43, number])
        shape = (int(rng.integers(1, _MAX_BATCH)), 3, *rng.integers(1, _MAX_SIDE, 2).tolist())
        images = draw_planes(rng, self._source, shape, np.dtype(np.uint8))
        images[...] = rng.integers(0, 256, shape)
        dtype = np.dtype(rng.choice(["uint8", "float16", "float32", "float64", "int64"]))
        table, factors = draw_conversion(rng, dtype)
        target = draw_planes(rng, self._target, shape, dtype)
        expected: Any = images
        if table is not None:
            expected = np.stack([table[c][images[:, c]] for c in range(3)], 1)
        self._convert(number, rng, images, (target, expected), (table, factors))
        wrong = draw_misfit(rng, images, target, table, factors)
        if not is_refused(_kernels.convert_planes, *wrong):
            self.report.findings.append(f"case {number}: a wrong batch was not refused")
        self._pass_on(number, rng)

    def _convert(
        self,
        number: int,
        rng: np.random.Generator,
        images: NDArray[np.uint8],
        batch: tuple[NDArray[Any], NDArray[Any]],
        conversion: tuple[Any, Any],
    ) -> None:
        """Convert with each variant, and compare all bytes around the target, too."""
        target, values = batch
        memory, before = self._target.take((_MAX_BYTES,), True), images.copy()
        memory[:] = 77
        target[...] = values
        expected = memory.tobytes()
        parts = [target] if rng.integers(2) else [target[:1], target[1:]]
        output: Any = parts if rng.integers(4) == 0 else target
        for variant in _kernels.variants():
            _kernels.select(variant)
            memory[:] = 77
            _kernels.convert_planes(images, (output, *conversion))
            if memory.tobytes() != expected:
                self.report.findings.append(f"case {number}: other values in {variant}")
        if not np.array_equal(images, before):
            self.report.findings.append(f"case {number}: the images were changed")

    def _pass_on(self, number: int, rng: np.random.Generator) -> None:
        """Run a program of no stage on an array of any strides."""
        dtype = np.dtype(rng.choice(["uint8", "float32", "uint8", "int8", ">f4", "float64"]))
        shape = tuple(rng.integers(0 if rng.integers(9) == 0 else 1, 7, rng.choice([2, 3, 3, 4])))
        order = rng.permutation(len(shape)) if rng.integers(2) else np.arange(len(shape))
        stored = draw_array(rng, self._source, tuple(shape[axis] for axis in order), dtype)
        array = stored.transpose(np.argsort(order))
        unaligned = misalign(rng, np.ones((2, 3, 3), np.float32))
        if _kernels.run_stage(_WHOLE, 0, unaligned) is not None:
            self.report.findings.append(f"case {number}: an unaligned image was taken")
        result = _kernels.run_stage(_WHOLE, 0, array)
        if result is None:
            is_usual = array.ndim == 3 and array.flags.c_contiguous and dtype.str in ("|u1", "<f4")
            if is_usual and array.size and array.shape[2] <= 4:
                self.report.findings.append(f"case {number}: an image was not taken")
            return
        self.report.images += 1
        passed = np.asarray(result)
        if passed.dtype != dtype or passed.shape != array.shape or (passed != array).any():
            self.report.findings.append(f"case {number}: an image was passed on as another one")


def draw_array(
    rng: np.random.Generator, memory: FencedMemory, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Draw an array that may have gaps after each axis, and run backwards along any."""
    item, strides, stride = dtype.itemsize, [0] * len(shape), dtype.itemsize
    for axis in reversed(range(len(shape))):
        strides[axis] = stride
        stride = stride * shape[axis] + item * int(rng.integers(5) * (rng.integers(4) == 0))
    last = sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    room = memory.take((max(last, 0) + item,), bool(rng.integers(4)))
    room[:] = np.arange(len(room)) % 61
    array = np.lib.stride_tricks.as_strided(room[:item].view(dtype), shape, strides)
    backwards = rng.integers(8, size=len(shape)) == 0
    return array[tuple(slice(None, None, -1 if turned else 1) for turned in backwards)]


def draw_planes(
    rng: np.random.Generator, memory: FencedMemory, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Draw an array (B, C, H, W) of packed rows in memory."""
    batch, channels, height, width = shape
    item = dtype.itemsize
    gaps = item * rng.integers(0, 4, 3) * rng.integers(0, 2, 3)
    row = width * item + int(gaps[0])
    plane = row * height + int(gaps[1])
    image = plane * channels + int(gaps[2])
    size = image * (batch - 1) + plane * (channels - 1) + row * (height - 1) + width * item
    room = memory.take((size,), is_last=bool(rng.integers(4)))
    strides = (image, plane, row, item)
    array = np.lib.stride_tricks.as_strided(room.view(dtype), shape, strides)
    backwards = rng.integers(6, size=3) == 0
    return array[tuple(slice(None, None, -1 if turned else 1) for turned in backwards)]


def draw_conversion(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return a table (3, 256), and factors (3, 3) that make it; None for each that there is not."""
    if dtype == np.uint8 and rng.integers(2):
        return None, None
    if dtype.kind in "ui":
        return rng.integers(0, 256, (3, 256)).astype(dtype), None
    scale, mean, std = rng.uniform(0.1, 2, (3, 3, 1)).astype(np.float32)
    if rng.integers(3) == 0:
        mean, std = np.zeros_like(mean), np.ones_like(std)
    table = ((np.arange(256, dtype=np.float32) * scale - mean) / std).astype(dtype)
    return table, np.stack([scale, mean, std])[:, :, 0] if rng.integers(2) else None


def draw_misfit(
    rng: np.random.Generator, images: Any, target: Any, table: Any, factors: Any
) -> tuple[Any, Any]:
    """Return arguments of which one does not fit the others."""
    batch, _, height, width = target.shape
    kind = int(rng.integers(7))
    output: Any = (target, table, factors)
    if kind == 0:
        sides = list(images.shape)
        sides[int(rng.integers(4))] += 1
        images = np.zeros(sides, np.uint8)
    elif kind == 1:
        wrong = [images.astype(np.int16), images[0], images.repeat(2, 3)[..., ::2], None, "image"]
        images = wrong[int(rng.integers(4 if width == 1 else 5))]
    elif kind == 2:
        rows = np.zeros((batch, height, width, 3), target.dtype)
        wrong = [rows.transpose(0, 3, 1, 2), target[0], 3, [], [target, None]]
        wrong.append(draw_wrong_slots(rng, target))
        output = wrong[int(rng.integers(6))], table, factors
    elif kind == 3:
        good = np.zeros((3, 256), target.dtype) if table is None else table
        wrong = [good[:, :255], good[:2], good[::-1], good[0], good.astype(np.complex128), 3]
        output = target, wrong[int(rng.integers(6))], factors
    elif kind == 4:
        good = np.zeros((3, 3), np.float32)
        wrong = [good[:2], good.astype(np.float64), good[:, ::-1], draw_wrong(rng, good[:, 0])]
        output = target, table, wrong[int(rng.integers(4))]
    elif kind == 5:  # the second part is smaller than the images, or has gaps
        sizes = [(max(height - 1, 1), width + 1), (height, width + 1), (height + 1, width)]
        part = np.zeros((batch, 3, *sizes[int(rng.integers(3))]), target.dtype)
        gaps = np.zeros((batch, 3, height, width + 1), target.dtype)[..., :-1]
        packed = np.zeros((batch, 3, height, width), target.dtype)
        parts = [packed, gaps if rng.integers(2) else part]
        images, output = np.zeros((2 * batch, 3, height, width), np.uint8), (parts, table, factors)
    else:
        output = [(target,), (target, table), [target, table, factors], None][int(rng.integers(4))]
    return images, output


def draw_wrong_slots(rng: np.random.Generator, target: NDArray[Any]) -> tuple[Any, ...]:
    """Return slots of unequal images of which one value does not fit the others."""
    batch, channels, height, width = target.shape
    sizes = np.tile(np.int64([height, width]), (batch, 1))
    values = (
        np.ascontiguousarray(target) if rng.integers(2) else np.zeros(target.size, target.dtype)
    )
    kind = int(rng.integers(6))
    if kind == 0:
        sizes[int(rng.integers(batch)), int(rng.integers(2))] = rng.choice(
            [-1, 0, 1 << 40, width + height]
        )
    elif kind == 1:
        sizes = [sizes[:0], sizes.repeat(2, 0), sizes.astype(np.int32), sizes[:, :1]][
            int(rng.integers(4))
        ]
    elif kind == 2:
        values = values[..., :-1] if rng.integers(2) else values.repeat(2, -1)[..., ::2]
    elif kind == 3:
        channels = int(rng.choice([-1, 0, 5, 1 << 30])) if values.ndim == 1 else 3
        values = values if values.ndim == 1 else values[0]
    elif kind == 4:
        return [(values, sizes), (values,), (), (None, sizes, channels, False)][
            int(rng.integers(4))
        ]
    else:
        values = values.astype(np.complex128)
    return values, sizes, channels, False


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_case))
