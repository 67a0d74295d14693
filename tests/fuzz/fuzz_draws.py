"""Fuzzes the function `draw_uniforms` of gpupipe._kernels with keys, counts, ids and repeats.

The numbers have to be those of NumPy to the bit. They are written to memory between pages that
nobody may touch. Arguments that are wrong or do not fit together have to be refused.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory
from numbered_cases import Report, run_cases
from wrong_arrays import draw_wrong, is_refused

from gpupipe.runtime.installation import find_extension
from gpupipe.sampling import draws

_kernels = find_extension()
_MAX_STREAMS, _MAX_COUNT, _MAX_SAMPLES = 6, 12, 60
_LIMITS = np.iinfo(np.int64)
_NAMES = ("keys", "counts", "ids", "repeats", "output")


class Fuzzer:
    """Draws by number."""

    def __init__(self) -> None:
        self.report = Report()
        self._memory = FencedMemory(8 * _MAX_STREAMS * _MAX_COUNT * _MAX_SAMPLES)

    def try_case(self, number: int) -> None:
        """Draw once with right arguments, and once with one that is wrong."""
        rng = np.random.default_rng([41, number])
        keys = rng.integers(0, 2**64, rng.integers(_MAX_STREAMS), np.uint64)
        counts = rng.integers(-1, _MAX_COUNT, len(keys))
        num_samples = int(rng.integers(_MAX_SAMPLES))
        ids = draw_numbers(rng, num_samples)
        repeats = draw_numbers(rng, num_samples) if rng.integers(2) else None
        expected = compute(keys, counts, ids, repeats)
        output = self._memory.take((expected.nbytes,), bool(rng.integers(2))).view(np.float64)
        output[:] = -1
        _kernels.draw_uniforms(keys, counts, ids, repeats, output)
        if output.tobytes() != expected.tobytes():
            self.report.findings.append(f"case {number} has other numbers than NumPy")
        output[:] = -1
        arguments: list[Any] = [keys, counts, ids, repeats, output]
        wrong = draw_misfit(rng, arguments)
        if not is_refused(_kernels.draw_uniforms, *arguments):
            self.report.findings.append(f"case {number}: wrong {wrong} were not refused")
        if (output != -1).any():
            self.report.findings.append(f"case {number}: wrong {wrong} changed the output")


def draw_numbers(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Draw numbers small and large, of which many are 0."""
    numbers = rng.integers(_LIMITS.min, _LIMITS.max, count, endpoint=True)
    return numbers >> rng.integers(0, 64, count)


def compute(
    keys: NDArray[np.uint64],
    counts: NDArray[np.int64],
    ids: NDArray[np.int64],
    repeats: NDArray[np.int64] | None,
) -> NDArray[np.float64]:
    """Return the draws of all streams, one after the other, by NumPy."""
    each = [
        draws._as_fractions(draws._lane_bits(key, ids, max(count, 0), repeats)).ravel()
        for key, count in zip(keys, counts.tolist(), strict=True)
    ]
    return np.concatenate([np.empty(0), *each])


def draw_misfit(rng: np.random.Generator, arguments: list[Any]) -> str:
    """Replace one argument by another one that must be refused; return its name."""
    keys, counts, ids, repeats, output = arguments
    place = int(rng.integers(len(arguments)))
    name = _NAMES[place]
    if rng.integers(3) == 0 or (name == "counts" and not len(counts)):
        arguments[place] = draw_wrong(
            rng, ids if repeats is None and name == "repeats" else arguments[place]
        )
    elif name == "keys":
        arguments[0] = np.zeros(len(keys) + 1, np.uint64)
    elif name == "counts":  # the number of all draws, or of their bytes, is 0 in 64 bits
        power = int(rng.integers(58, 63))
        arguments[1] = np.where(np.arange(len(counts)) == rng.integers(len(counts)), 2**power, 0)
        rows = 2 ** max(int(rng.integers(61, 65)) - power, 0)
        arguments[2:] = np.zeros(rows, np.int64), None, output[:0]
    elif name == "output":
        longer = np.zeros(len(output) + int(rng.integers(1, 3)))
        arguments[4] = output[:-1] if len(output) and rng.integers(2) else longer
    else:
        arguments[3] = np.zeros(len(ids) + 1, np.int64)
    return name


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_case))
