"""Random windows of images, of which the first that fits is taken: ten tries, as in torchvision.

The extension computes those of a whole batch in one call, and NumPy those of a single image, with
the same operations in the same order. So both have the same windows, to the bit.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.pipeline.geometry import Floats, draw_between
from gpupipe.pipeline.step import Params
from gpupipe.runtime.installation import find_extension

_extension = find_extension()


def draw_windows(
    scale: tuple[float, float],
    ratio: tuple[float, float],
    areas: Floats,
    ratios: Floats,
    width_first: bool = False,
) -> Floats:
    """Compute the sizes of random windows from uniform draws.

    Args:
        scale: [min, max] of the window's share of the image's area, drawn uniformly.
        ratio: [min, max] of the window's width / height, drawn log-uniformly.
        areas: Uniform draws in [0, 1) for the areas, of any shape (...).
        ratios: Uniform draws in [0, 1) for width / height, of the same shape (...).
        width_first: Whether the result is [width, height].

    Returns:
        [height, width] of each window in units of the square root of the image's area, (..., 2).
    """
    area, aspect = draw_between(scale, areas), np.exp(draw_between(_find_logs(ratio), ratios))
    factors = np.empty((*areas.shape, 2))
    if _extension is not None and areas.ndim == 2:
        _extension.window_factors(area, aspect, areas.shape[1], width_first, factors)
    else:
        sides = np.sqrt(area / aspect), np.sqrt(area * aspect)
        factors[..., int(width_first)], factors[..., int(not width_first)] = sides
    return factors


@lru_cache(maxsize=64)
def _find_logs(ratio: tuple[float, float]) -> tuple[np.float64, np.float64]:
    low, high = np.log(ratio)
    return low, high


def choose_windows(
    p: Params, size: Any, runs: NDArray[np.int32] | None = None
) -> tuple[Floats, bool] | None:
    """Choose the first drawn window of each sample that fits, for a whole batch in one call.

    Args:
        p: "factors", (B, tries, 2), from `draw_windows`, and "position", (B, 2), the [top, left] as
            fractions of the free space around the window.
        size: [height, width] of the images in pixels, (B, 2).
        runs: None for windows that may be as large as the image. Else they must be smaller, and
            have no pixels where none fits or the sample has 0 here, int32 (B,).

    Returns:
        [top, left, height, width], (B, 4), in pixels: of the first of all windows where none fits.
        And whether one fits in each sample. None without the extension, or for a single image.
    """
    factors = p["factors"]
    if _extension is None or factors.ndim != 3 or np.shape(size) != (len(factors), 2):
        return None
    windows = np.empty((len(factors), 4))
    position, sizes = (np.ascontiguousarray(a, np.float64) for a in (p["position"], size))
    all_fit = _extension.choose_windows(factors, factors.shape[1], position, sizes, runs, windows)
    return windows, all_fit


def take_first(windows: Any, fits: Any) -> Any:
    """Return the size of the first window that fits, or of the very first window if none fits.

    Args:
        windows: The sizes of the windows to choose from, (..., tries, 2).
        fits: Whether each window fits, bool (..., tries).

    Returns:
        The sizes of the chosen windows, (..., 2).
    """
    tries = windows.reshape(-1, *windows.shape[-2:])  # np.take_along_axis is slower
    first = tries[np.arange(len(tries)), fits.reshape(len(tries), -1).argmax(-1)]
    return first.reshape(*windows.shape[:-2], 2)
