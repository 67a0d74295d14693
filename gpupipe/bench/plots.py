"""Plots a comparison: means, error bars of one standard deviation, and one dot per round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.bench.comparison import Comparison, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which is safe for colour-blind readers; dashes differ too.
_GREEN, _BLUE, _ORANGE = "#009e73", "#0072b2", "#d55e00"
_COLORS = {"DALI on GPU": _GREEN, "DALI on CPU": _BLUE}
_DASHES = {"DALI on GPU": "--", "DALI on CPU": "-."}
_INCHES = (5.4, 3.8)
_DOTS_PER_INCH = 200
_BESIDE, _BELOW = 7, 0.27
"""The offset of the rounds' dots, so that they do not hide the error bar: points to its left, and
bar widths below it.
"""
_FEW = 4
"""The least number of bars to leave room for: one or two alone would be as thick as the plot."""
_DOT: dict[str, Any] = {
    "marker": "o",
    "s": 14,
    "facecolors": "none",
    "edgecolors": "#222222",
    "linewidths": 0.8,
    "zorder": 3,
}


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Write time.png, time.svg, rate.png and rate.svg to `folder`; return their paths."""
    import matplotlib

    paths = []
    # With a fixed salt the same comparison yields the same file.
    with matplotlib.rc_context({"svg.hashsalt": "gpupipe", "font.size": 11}):
        for name, figure in (("time", time_per_batches(comparison)), ("rate", rates(comparison))):
            title = figure.axes[0].get_title(loc="left")
            for form in ("png", "svg"):
                paths.append(folder / f"{name}.{form}")
                figure.savefig(
                    paths[-1],
                    dpi=_DOTS_PER_INCH,
                    metadata={"Title": title} | ({"Date": None} if form == "svg" else {}),
                )
    return paths


def time_per_batches(comparison: Comparison) -> Figure:
    """Plot seconds per 100 batches over the number of DataLoader workers.

    DALI has no workers and appears as horizontal lines.
    """
    figure, axes = _figure(f"Time for 100 batches{_batch_size(comparison)}", "lower is better")
    axes.set_ylabel("seconds")
    for r in comparison.measured:
        if r.side.workers is None:
            _across(axes, r)
    loaders = sorted(
        (r for r in comparison.measured if r.side.workers is not None),
        key=lambda r: r.side.workers or 0,
    )
    if loaders:
        _against_workers(axes, loaders)
    else:
        axes.set_xticks([])
        axes.set_xlabel("the DataLoader was not measured")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _across(axes: Axes, result: Result) -> None:
    """Draw a horizontal line for the mean, and a band of one standard deviation on either side."""
    times, name = _times(result), result.side.name
    mean, deviation, color = statistics.fmean(times), _deviation(times), _COLORS.get(name, _BLUE)
    axes.axhline(
        mean,
        color=color,
        linestyle=_DASHES.get(name, "-"),
        linewidth=2,
        label=f"{name} ({_short(mean)} s)",
    )
    axes.axhspan(mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0)


def _against_workers(axes: Axes, loaders: Sequence[Result]) -> None:
    from matplotlib.transforms import ScaledTranslation

    counts, times_by_count = [r.side.workers or 0 for r in loaders], [_times(r) for r in loaders]
    means = [statistics.fmean(times) for times in times_by_count]
    axes.errorbar(
        counts,
        means,
        _bars([_deviation(t) for t in times_by_count]),
        color=_ORANGE,
        marker="o",
        linewidth=2,
        capsize=4,
        label="DataLoader",
    )
    beside = axes.transData + ScaledTranslation(-_BESIDE / 72, 0, axes.figure.dpi_scale_trans)
    for count, mean, times in zip(counts, means, times_by_count, strict=True):
        axes.scatter([count] * len(times), times, transform=beside, **_DOT)
        axes.annotate(
            _short(mean), (count, mean), xytext=(8, 4), textcoords="offset points", color="#222222"
        )
    axes.set_xticks(counts)
    # room for the dots left of the first mean and the number right of the last
    room = 0.4 + 0.08 * (max(counts) - min(counts))
    axes.set_xlim(min(counts) - room, max(counts) + room)
    axes.set_xlabel("workers of the DataLoader")


def rates(comparison: Comparison) -> Figure:
    """Plot images per second, one bar per side."""
    figure, axes = _figure("Images a second", "higher is better")
    axes.set_xlabel("images/s")
    results = comparison.measured[::-1]
    colors = [
        _COLORS.get(r.side.name, _BLUE if r.side.workers is None else _ORANGE) for r in results
    ]
    bars = _bars([r.deviation or 0.0 for r in results])
    axes.barh(
        [r.side.name for r in results],
        [r.mean for r in results],
        xerr=bars,
        color=colors,
        alpha=0.85,
        capsize=4,
    )
    for y, r in enumerate(results):
        axes.scatter(r.rates, [y - _BELOW] * len(r.rates), **_DOT)
        end = max(r.mean + (r.deviation or 0.0), *r.rates)
        axes.annotate(
            f"{r.mean:,.0f}", (end, y), xytext=(6, 0), textcoords="offset points", va="center"
        )
    # Start at 0: an error bar may reach below it, a rate cannot.
    axes.set_xlim(0, axes.get_xlim()[1] * 1.1)
    middle, half = (len(results) - 1) / 2, max(len(results), _FEW) / 2
    axes.set_ylim(middle - half, middle + half)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=6)
    return figure


def _times(result: Result) -> list[float]:
    """Return the seconds per 100 batches in each round."""
    return [100 * o.seconds / o.batches for o in result.outcomes]


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _bars(deviations: list[float]) -> list[float] | None:
    """Return the error bars; None for single rounds, since a zero width would claim no error."""
    return deviations if any(deviations) else None


def _short(seconds: float) -> str:
    """Format with three digits."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:#.3g}"


def _batch_size(comparison: Comparison) -> str:
    data = next((o.data for r in comparison.measured for o in r.outcomes), {})
    return f" of {data['batch_size']} images" if "batch_size" in data else ""


def _figure(title: str, which_way: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{title}, {which_way}", loc="left", fontsize="medium", weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
