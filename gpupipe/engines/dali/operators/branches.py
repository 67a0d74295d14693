"""What becomes of arguments and sizes where the samples of a batch take different branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali.operators import ops

Feed = Callable[[NDArray[Any]], Any]
"""Takes the per-sample values of one operator argument, (B, ...), and returns their DataNode."""


def feed_part(feed: Feed, is_low: Any, side: int) -> Feed:
    """Return a Feed that passes on one half of each argument."""

    def feed_part(array: NDArray[Any]) -> Any:
        node = feed(array)
        return None if node is None else ops.split(node, is_low)[side]

    return feed_part


def merge_sizes(before: Any, parts: list[tuple[NDArray[np.bool_], Any]]) -> Any:
    """Return the sizes of all samples after a switch.

    It stays one size for all samples, (2,), if each branch made that size.

    Args:
        before: The sizes before the switch.
        parts: For each branch, which samples took it, and the sizes that it made.
    """
    sizes = [np.asarray(size) for _, size in parts]
    if all(size.ndim == 1 and np.array_equal(size, sizes[0]) for size in sizes):
        return sizes[0]
    merged = np.array(np.broadcast_to(before, (len(parts[0][0]), sizes[0].shape[-1])), np.float64)
    for (present, _), size in zip(parts, sizes, strict=True):
        merged = np.where(present[:, None], size, merged)
    return merged
