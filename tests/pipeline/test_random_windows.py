"""Random windows: the extension's and NumPy's."""

import numpy as np
import pytest

from gpupipe.pipeline.random_windows import draw_windows


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
