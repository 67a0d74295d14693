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


@pytest.mark.parametrize("tries", [-1, 0, 2**62, 2**63 - 1])
def test_tries_that_no_array_has_are_refused(tries: int) -> None:
    """The number of factors, 2 * tries, does not fit 64 bits."""
    with pytest.raises(ValueError, match="tries"):
        kernels.window_factors(rows(3, 4), rows(3, 4), tries, False, rows(3, 4, 2))
    arrays = rows(3, 2), rows(3, 2), np.ones(3, np.int32)
    with pytest.raises(ValueError, match="tries"):
        kernels.choose_windows(rows(3, 4, 2), tries, *arrays, rows(3, 4))


@pytest.mark.parametrize("far", [2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("place", range(4))
def test_windows_whose_edges_overflow_are_refused(far: int, place: int) -> None:
    """Each edge is a sum."""
    window = ints(1, 4)
    window[0, place] = far
    image, size, fill = np.ones((4, 5, 3), np.uint8), ints(1, 2), b"\1\2\3"
    for stage in (
        kernels.window_stage(window, fill, None, None),
        kernels.nearest_stage(size, window, fill, None, None),
    ):
        assert kernels.run_stage(stage, 0, image) is None
    output = np.ones((1, 3, 4, 5), np.uint8), None, None, window, np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="far away"):
        kernels.deliver_stage(None, output)
