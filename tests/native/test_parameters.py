"""Arrays of parameters that do not fit together are refused, and never read past their ends."""

from typing import Any

import numpy as np
import pytest

kernels = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
NUMBERS = (1, 2, 3, 4, 5, 6, 7, True)


def rows(count: int, *columns: int) -> Any:
    return np.ones((count, *columns))


def ints(count: int, *columns: int) -> Any:
    return np.ones((count, *columns), np.int64)


def draw(areas: int, aspects: int) -> None:
    kernels.window_factors(rows(areas, 4), rows(aspects, 4), 4, False, rows(areas, 4, 2))


def choose(factors: int, positions: int, sizes: int, runs: int) -> None:
    arrays = rows(positions, 2), rows(sizes, 2), np.ones(runs, np.int32)
    kernels.choose_windows(rows(factors, 4, 2), 4, *arrays, rows(factors, 4))


def move(ops: int, *counts: int) -> None:
    numbers = [rows(count) for count in counts[:3]]
    outputs = rows(ops, 2, 2), rows(ops, 2), rows(ops, 2)
    kernels.policy_moves(NUMBERS, np.ones(ops, np.int32), *numbers, rows(counts[3], 2), outputs)


def warp(linear: int, sources: int, outputs: int) -> None:
    arrays = rows(linear, 2, 2), rows(sources, 2), rows(outputs, 2)
    kernels.warp_matrices(*arrays, rows(linear, 2, 3))


def limit(windows: int, sizes: int) -> None:
    kernels.limit_windows(ints(windows, 4), rows(sizes, 2), ints(windows, 4))


@pytest.mark.parametrize(
    ("call", "count"), [(draw, 2), (choose, 4), (move, 5), (warp, 3), (limit, 2)]
)
def test_arrays_of_other_rows_are_refused(call: Any, count: int) -> None:
    call(*[3] * count)
    for n in range(1, count):
        with pytest.raises(ValueError, match=r"differ in rows|do not fit together"):
            call(*[2 if n == k else 3 for k in range(count)])


def test_an_array_of_many_rows_without_values_is_refused() -> None:
    """The size of its rows, 2**64 bytes, is 0 in 64 bits."""
    with pytest.raises(ValueError, match="the windows"):
        kernels.crop_stage(np.empty((2**59, 0), np.int64))


def test_values_that_are_not_aligned_are_refused() -> None:
    with pytest.raises(ValueError, match="the windows"):
        kernels.crop_stage(memoryview(bytearray(33))[1:].cast("q", (1, 4)))


@pytest.mark.parametrize(("count", "samples"), [(2**61, 1), (2**62, 4), (2**63 - 1, 2)])
def test_more_draws_than_there_can_be_are_refused(count: int, samples: int) -> None:
    keys, counts, ids = np.ones(2, np.uint64), np.array([count, 0]), np.zeros(samples, np.int64)
    for output in (np.empty(0), np.empty(2)):
        with pytest.raises(ValueError, match="do not fit together"):
            kernels.draw_uniforms(keys, counts, ids, None, output)
