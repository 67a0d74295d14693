"""Counts sizes, formats and classes of a data set; mean and standard deviation by channel."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_columns import offsets_of
from gpupipe.inspection.scan import Scan

Counts = list[tuple[str, int]]
"""Names of bins, such as "320 to 451", and how many images are in each."""
_SIDES = np.unique(np.round(2 ** (np.arange(33) / 2)).astype(np.int64))
"""Bounds of sides in pixels: two of them double a side."""
_ASPECTS = np.array([0, 1 / 2, 2 / 3, 3 / 4, 0.95, 1.05, 4 / 3, 3 / 2, 2, np.inf])
_ASPECT_NAMES = (
    *("under 1:2", "1:2 to 2:3", "2:3 to 3:4", "3:4 to square", "square"),
    *("square to 4:3", "4:3 to 3:2", "3:2 to 2:1", "over 2:1"),
)


def describe(scan: Scan) -> dict[str, Any]:
    """Return the statistics of a data set as plain JSON.

    "sides" has the smallest, the median and the largest one; "normalize" is None without pixels.
    """
    known = scan.facts[scan.facts["height"] > 0]
    heights, widths = known["height"].astype(np.int64), known["width"].astype(np.int64)
    sides = {
        "shorter side": np.minimum(heights, widths),
        "longer side": np.maximum(heights, widths),
    }
    return {
        "images": len(scan.index),
        "unreadable": len(scan.errors),
        "bytes": int(scan.facts["bytes"].clip(0).sum()),
        "normalize": _normalize(scan),
        "sides": {
            name: [int(np.min(side)), int(np.median(side)), int(np.max(side))]
            for name, side in sides.items()
            if len(side)
        },
        "histograms": {
            **{name: _count_sides(side) for name, side in sides.items()},
            "width : height": _count_bins(widths / heights, _ASPECTS, _ASPECT_NAMES),
            "format": _count_names(name.decode() for name in known["format"].tolist()),
            "channels and depth": _count_names(
                map(_describe_depth, known[["channels", "depth"]].tolist())
            ),
            "class": _count_classes(scan),
        },
    }


def _normalize(scan: Scan) -> dict[str, list[float]] | None:
    """Return mean and standard deviation of all pixels in 0..1; each image has the same weight."""
    facts = scan.facts[scan.pixels]
    if not len(facts):
        return None
    mean = facts["mean"].mean(0)[: scan.channels]
    variance = facts["square"].mean(0)[: scan.channels] - mean**2
    std = np.sqrt(variance.clip(0))
    return {"mean": (mean / 255).round(4).tolist(), "std": (std / 255).round(4).tolist()}


def _count_bins(values: NDArray[Any], bounds: NDArray[Any], names: Iterable[str]) -> Counts:
    """Count values in bins [bounds[i], bounds[i + 1]); empty bins at both ends are left out."""
    counts = np.bincount(np.searchsorted(bounds, values, "right") - 1, minlength=len(bounds) - 1)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return []
    pairs = list(zip(names, counts.tolist(), strict=True))
    return pairs[filled[0] : filled[-1] + 1]


def _count_sides(sides: NDArray[np.int64]) -> Counts:
    ends = zip(_SIDES, _SIDES[1:] - 1, strict=False)
    return _count_bins(sides, _SIDES, [f"{low} to {high}" for low, high in ends])


def _count_names(names: Iterable[str]) -> Counts:
    """Count names, the most frequent first."""
    return Counter(sorted(filter(None, names))).most_common()


def _describe_depth(facts: tuple[int, int]) -> str:
    channels, depth = facts
    return f"{channels or 'unknown'} x {f'{depth} bits' if depth else 'bits not stated'}"


def _count_classes(scan: Scan) -> Counts:
    """Count samples by class or, without labels of samples, boxes by class."""
    index = scan.index
    labels = index.labels if index.has_labels else np.empty(0, np.int64)
    if not index.has_labels and "labels" in index.annotations:
        offsets_of(index.annotations, "labels")
        labels = np.asarray(index.annotations["labels"].values).ravel()
    inside = labels[(labels >= 0) & (labels < len(index.classes))]
    counts = np.bincount(inside, minlength=len(index.classes)).tolist()
    pairs = zip(index.classes, counts, strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0])) if len(labels) else []
