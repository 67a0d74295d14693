"""Fuzzes the stage `call_stage` of gpupipe._kernels, which calls a function in another process.

A thread stands for the process: it answers right, wrong, in part, too late or not at all, while
signals interrupt the caller. The image, the memory that both map and the pool's tables lie between
pages that nobody may touch. A right answer has to make the pixels of NumPy in every variant; any
other one leaves the sample to Python, with the number of the process back in the pipe.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory
from numbered_cases import Report, run_cases
from wrong_arrays import draw_wrong, is_refused

from gpupipe.runtime.installation import find_extension

_kernels = find_extension()
_MAX_SIDE, _PAGE = 70, 4096
_MAX_IMAGE = 4 * 4 * _MAX_SIDE * (_MAX_SIDE + 8)
_LIMITS = np.iinfo(np.int64)
_SHORT, _LONG = 0.01, 50.0
"""Limits of a call in seconds: of one without an answer, and of all others."""
_ANSWERS = {
    "right": True,
    "slow": True,  # in several parts
    "another": True,  # a message, but not the one that is expected
    "long": True,
    "cut": False,  # the pipe is closed before its end
    "endless": False,  # of 4 GiB by its length, after which the pipe is closed
    "none": False,  # within the limit
    "closed": False,  # the process has ended
}
"""Each answer, and whether the process can go on after it."""


@dataclass
class CallReport(Report):
    """What a run found.

    Attributes:
        calls: Calls that a process answered right.
    """

    calls: int = 0


class Fuzzer:
    """Makes images and answers by number, and tries them."""

    def __init__(self) -> None:
        self.report = CallReport()
        self._image, self._shared = FencedMemory(_MAX_IMAGE), FencedMemory(3 * _MAX_IMAGE)
        self._tables = FencedMemory(_PAGE)

    def try_case(self, number: int) -> None:
        """Call with each variant, and compare the pixels; then call with wrong arguments."""
        rng = np.random.default_rng([42, number])
        image = self._draw_image(rng)
        before, answer = image.copy(), str(rng.choice(list(_ANSWERS)))
        channels, item_size = int(rng.integers(1, 5)), int(rng.choice([1, 4]))
        size = (0, 0) if rng.integers(2) else tuple(rng.integers(1, _MAX_SIDE, 2).tolist())
        height, width = size if size[0] else image.shape[:2]
        shape, dtype = (channels, height, width), "uint8" if item_size == 1 else "float32"
        seeds = rng.integers(_LIMITS.min, _LIMITS.max, int(rng.integers(1, 4)), endpoint=True)
        row = int(rng.integers(len(seeds)))
        expected = respond(image, seeds[row], shape, dtype)
        needed = -(-image.nbytes // _PAGE) * _PAGE + (expected.nbytes + 3) // 4 * 4
        is_small = rng.integers(6) == 0
        room = int(rng.integers(needed)) // 4 * 4 if is_small else needed
        shared = self._shared.take((room,), bool(rng.integers(4)))
        is_right = answer in ("right", "slow") and not is_small
        for variant in _kernels.variants():
            _kernels.select(variant)
            with open_process(answer, shared, shape, dtype) as process:
                pipes = self._tables.take((8,), True).view(np.int32).reshape(1, 2)
                pipes[:] = process.pipes
                limit = _SHORT if answer == "none" else _LONG
                processes = (process, *process.numbers, pipes, (shared,), limit)
                output = channels, item_size, *size
                stage = _kernels.call_stage(processes, seeds, '"image"', output)
                result = _kernels.run_stage(stage, row, image)
                can_go_on = _ANSWERS[answer] or is_small
                if os.read(process.numbers[0], 9) != bytes(2):
                    self.report.findings.append(f"case {number}: its process is not free again")
            if (pipes[0, 0] >= 0) != can_go_on:
                self.report.findings.append(f"case {number}: {answer}: pipes are {pipes.tolist()}")
            if (result is not None) != is_right or (
                is_right and not np.array_equal(np.asarray(result), expected)
            ):
                self.report.findings.append(f"case {number}: {answer}: other pixels in {variant}")
            self.report.calls += is_right
        if not np.array_equal(image, before):
            self.report.findings.append(f"case {number} changed its input")
        self._try_wrong(number, rng, image)

    def _draw_image(self, rng: np.random.Generator) -> NDArray[Any]:
        """Draw an image of 1 to 4 channels, uint8 or float32, interleaved or planes, with gaps."""
        dtype = np.dtype(rng.choice(["uint8", "float32"]))
        height, width, channels = (int(n) for n in rng.integers(1, [_MAX_SIDE, _MAX_SIDE, 5]))
        is_planar, item = bool(rng.integers(2)), dtype.itemsize
        pixel = item if is_planar else channels * item
        stride = width * pixel + int(rng.integers(0, 9)) * item * int(rng.integers(2))
        plane = stride * height if is_planar else item
        last = (height - 1) * stride + (width - 1) * pixel + (channels - 1) * plane
        data = self._image.take((last + item,), is_last=bool(rng.integers(4))).view(dtype)
        strides = stride, pixel, plane
        image = np.lib.stride_tricks.as_strided(data, (height, width, channels), strides)
        image[...] = rng.integers(0, 256, image.shape)
        return image

    def _try_wrong(self, number: int, rng: np.random.Generator, image: NDArray[Any]) -> None:
        """Make a stage of wrong arguments, or run one of a pool that is of no use."""
        numbers, shared = os.pipe(), self._shared.take((64,), True)
        pipes = np.full((2, 2), -1, np.int32)
        seeds = np.arange(3)
        processes: list[Any] = [None, *numbers, pipes, (shared, shared), 1.0]
        output, kind = [3, 1, 0, 0], int(rng.integers(6))
        arguments: list[Any] = [tuple(processes), seeds, '"image"', tuple(output)]
        if kind == 0:
            processes[3] = draw_wrong(rng, pipes)
        elif kind == 1:
            sides = {0: [0, 5, -1], 1: [0, 2, 8], 2: [-1, 2**20 + 1], 3: [-9, 2**31 - 1]}
            place = int(rng.integers(4))
            output[place] = int(rng.choice(sides[place]))
        elif kind == 2:
            arguments[1] = draw_wrong(rng, seeds)
        elif kind == 3:
            unaligned, fixed = np.zeros(65, np.uint8)[1:], np.zeros(64, np.uint8)
            fixed.flags.writeable = False
            few: list[Any] = [(shared,), (shared,) * 3, (shared, 3), (shared, fixed)]
            few += [(unaligned, shared), (shared, shared[::2]), [shared, shared]]
            processes[4] = few[int(rng.integers(len(few)))]
        elif kind == 4:
            processes[5] = float(rng.choice([-1.0, np.nan, -np.inf]))
        arguments[0], arguments[3] = tuple(processes), tuple(output)
        if kind < 5:
            if not is_refused(_kernels.call_stage, *arguments):
                self.report.findings.append(f"case {number}: wrong arguments were not refused")
        else:
            # A process that was never started, one that is not there, no pipe, or one that ended.
            os.write(
                numbers[1], rng.choice([[0, 0], [1, 0], [2, 0], [9, 9]]).astype("u1").tobytes()
            )
            processes[5] = float(rng.choice([0.0, 1e300, np.inf]))
            if rng.integers(2):
                os.read(numbers[0], 2)
                os.close(numbers[1])
                processes[2] = -1
                processes[1] = int(rng.choice([numbers[0], 2**31 - 1]))
            stage = _kernels.call_stage(tuple(processes), *arguments[1:])
            file = np.zeros(9, np.uint8)
            if any(_kernels.run_stage(stage, 1, content) is not None for content in (image, file)):
                self.report.findings.append(f"case {number}: no process made pixels")
        for fd in numbers[: 1 + (processes[2] >= 0)]:
            os.close(fd)


def respond(image: NDArray[Any], seed: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return what the function makes of an image, (H, W, C)."""
    channels, height, width = shape
    pixels = np.resize(image, (height, width, channels))
    return (pixels.astype(np.uint8) ^ np.uint8(int(seed) & 255)).astype(dtype)


class _Process:
    """A thread that answers one call as a process of the user's function would.

    Attributes:
        numbers: The pipe of the numbers of free processes: to take one, and to put it back.
        pipes: The descriptors of requests and of answers.
    """

    def __init__(
        self, answer: str, shared: NDArray[np.uint8], shape: tuple[int, ...], dtype: str
    ) -> None:
        self._answer, self._shared, self._shape, self._dtype = answer, shared, shape, dtype
        self.numbers = os.pipe()
        os.set_blocking(self.numbers[0], False)
        os.write(self.numbers[1], bytes(2))
        (self._requests, request), (answer_end, self._answers) = os.pipe(), os.pipe()
        self.pipes = request, answer_end
        if answer == "closed":
            os.close(self._requests)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        os.close(self.pipes[0])  # ends a thread that waits for a request
        self._thread.join()
        own = () if self._answer == "closed" else (self._requests,)
        for fd in (*self.numbers, self.pipes[1], *own):
            os.close(fd)

    def _run(self) -> None:
        if self._answer != "closed":
            length = int.from_bytes(os.read(self._requests, 4), "big")
            if length and self._answer != "none":
                request = json.loads(os.read(self._requests, length))
                self._write(self._make(request))
        if self._answer == "none":
            os.read(self._requests, 1 << 16)
            os.read(self._requests, 1 << 16)  # until it is closed
        os.close(self._answers)

    def _make(self, request: dict[str, Any]) -> bytes:
        """Read the image, write the output, and return the bytes of the answer."""
        place = request["image"]
        planes = self._shared[place["begin"] : place["end"]].view(place["dtype"])
        image = planes.reshape(place["shape"]).transpose(1, 2, 0)
        output = respond(image, request["seed"], self._shape, self._dtype)
        begin = -(-place["end"] // _PAGE) * _PAGE
        end = begin + output.nbytes
        written = self._shared[begin:end].view(self._dtype).reshape(self._shape)
        written[:] = output.transpose(2, 0, 1)
        answer = {"dtype": self._dtype, "shape": self._shape, "begin": begin, "end": end}
        text = json.dumps({"output": answer}).encode()
        if self._answer == "another":
            text = text[:-3] + bytes([text[-3] ^ 1]) + text[-2:] if len(text) % 2 else text[:-1]
        if self._answer == "long":
            text += b" " * 70_000
        if self._answer == "endless":
            return b"\xff\xff\xff\xff" + text * 100
        message = len(text).to_bytes(4, "big") + text
        return message[: len(message) * 2 // 3] if self._answer == "cut" else message

    def _write(self, message: bytes) -> None:
        step = 7 if self._answer == "slow" else len(message)
        for at in range(0, len(message), step):
            part = message[at : at + step]
            while part:
                part = part[os.write(self._answers, part) :]


@contextmanager
def open_process(
    answer: str, shared: NDArray[np.uint8], shape: tuple[int, ...], dtype: str
) -> Iterator[_Process]:
    """Start a process, and interrupt this thread by signals until it has answered."""
    process = _Process(answer, shared, shape, dtype)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        yield process
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        process.close()


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_case))
