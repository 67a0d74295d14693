"""Random windows: the extension's and NumPy's."""

import numpy as np
import pytest

from gpupipe.pipeline.random_windows import choose_windows, draw_windows
from gpupipe.runtime.installation import find_extension


@pytest.mark.parametrize("width_first", [False, True])
def test_the_windows_of_a_batch_are_those_of_the_formula(width_first: bool) -> None:
    """To the bit: only a batch, (B, tries), is drawn in the extension."""
    areas, ratios = np.random.default_rng(0).random((2, 50, 10))
    how = (0.08, 1.0), (3 / 4, 4 / 3)
    windows = draw_windows(*how, areas, ratios, width_first)
    assert np.array_equal(windows, draw_windows(*how, areas[None], ratios[None], width_first)[0])
    area = 0.08 + areas * (1.0 - 0.08)
    np.testing.assert_allclose(windows.prod(-1), area, rtol=1e-14)
    aspects = windows[..., 1 - width_first] / windows[..., int(width_first)]
    assert 0.75 <= aspects.min() < 0.8
    assert 1.25 < aspects.max() <= 4 / 3


FIRST, SECOND, THIRD = [0.5, 0.25], [0.25, 0.5], [0.75, 0.75]
EDGES = [
    ([FIRST, SECOND, THIRD], [8, 4], [8, 4]),
    ([[1.0, 0.5], SECOND, THIRD], [16, 8], [4, 8]),
    ([[0.5, 1.0], [2.0, 0.5], THIRD], [8, 16], [12, 12]),
    ([[0.0, 0.5], SECOND, THIRD], [4, 8], [0, 8]),
    ([[0.5, 0.02], SECOND, THIRD], [4, 8], [8, 0]),
    ([[1.5, 0.5], [0.5, 1.5], [2.0, 2.0]], [24, 8], [0, 0]),
]
"""Windows for 16x16 pixels as parts of its side, and the one that is cut out, or erased."""


@pytest.mark.skipif(find_extension() is None, reason="the extension is not built, or is off")
def test_the_first_window_that_fits_is_chosen() -> None:
    """One to erase must be smaller than the image; the last of the samples has none that fits."""
    count = len(EDGES)
    p = {"factors": np.array([tries for tries, *_ in EDGES]), "position": np.full((count, 2), 0.9)}
    size = np.full((count, 2), 16.0)
    flags = np.arange(count) != 0
    for n, runs in ((1, None), (2, np.ones(count, np.int32)), (2, flags.astype(np.int32))):
        shapes = np.array([edge[n] for edge in EDGES])
        if runs is not None:
            shapes[runs == 0] = 0
        expected = np.concatenate([np.floor(0.9 * (17 - shapes)), shapes], 1)
        chosen = choose_windows(p, size, runs)
        assert chosen is not None
        assert np.array_equal(chosen[0], expected), n
        assert not chosen[1]
        part = {name: values[:-1] for name, values in p.items()}
        fitting = choose_windows(part, size[:-1], None if runs is None else runs[:-1])
        assert fitting is not None and fitting[1]
    backwards = {name: values[::-1].copy() for name, values in p.items()}
    found = choose_windows(backwards, size)
    assert found is not None and not found[1], "the first sample alone has none"
