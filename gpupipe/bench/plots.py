"""The plots of a comparison, with error bars of one standard deviation."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.bench.compare import Comparison, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {"DALI on GPU": "#76b900", "DALI on CPU": "#1f6fb4"}
_LOADER_COLOR = "#c2571a"
_DOTS_PER_INCH = 150


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """time.png, time.svg, rate.png, rate.svg in `folder`."""
    made = []
    for name, figure in (("time", time_per_batches(comparison)), ("rate", rates(comparison))):
        for form in ("png", "svg"):
            made.append(folder / f"{name}.{form}")
            figure.savefig(made[-1], dpi=_DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
    return made


def time_per_batches(comparison: Comparison) -> Figure:
    """Seconds per 100 batches against the DataLoader's workers; DALI, which has none, as lines across."""
    figure, axes = _figure("workers of the DataLoader", "seconds per 100 batches")
    loaders = sorted((r for r in comparison.measured if r.side.workers is not None), key=lambda r: r.side.workers or 0)
    if loaders:
        counts = [r.side.workers for r in loaders]
        axes.errorbar(counts, *_times(loaders), color=_LOADER_COLOR, marker="o", capsize=4, label="DataLoader")
        axes.set_xticks(counts)
    for r in comparison.measured:
        if r.side.workers is None:
            (mean,), (deviation,) = _times([r])
            axes.axhline(mean, color=_COLORS[r.side.name], label=r.side.name)
            axes.axhspan(mean - deviation, mean + deviation, color=_COLORS[r.side.name], alpha=0.2, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def rates(comparison: Comparison) -> Figure:
    """Images a second of every side, a bar each."""
    figure, axes = _figure("images a second", "")
    found = comparison.measured[::-1]
    colors = [_COLORS.get(r.side.name, _LOADER_COLOR) for r in found]
    axes.barh([r.side.name for r in found], [r.mean for r in found], xerr=[r.deviation or 0.0 for r in found], color=colors, capsize=4)
    for place, r in enumerate(found):
        axes.annotate(f"{r.mean:,.0f}", (0, place), xytext=(6, 0), textcoords="offset points", color="white", va="center", weight="bold")
    return figure


def _times(results: list[Result]) -> tuple[list[float], list[float]]:
    """Means and standard deviations of the seconds per 100 batches."""
    each = [[100 * o.seconds / o.batches for o in r.outcomes] for r in results]
    return [statistics.fmean(t) for t in each], [statistics.stdev(t) if len(t) > 1 else 0.0 for t in each]


def _figure(across: str, up: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
