"""Plots a comparison: means, error bars of one standard deviation, and one dot per round."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.bench.comparison import Comparison, Result
from gpupipe.bench.machine import machine
from gpupipe.bench.measure import deviation
from gpupipe.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which is safe for colour-blind readers; dashes differ too.
_STYLES = {
    "DALI on GPU": ("#009e73", "--"),
    "DALI on CPU": ("#0072b2", "-."),
    "CPU engine": ("#cc79a7", ":"),
}
_OTHER_STYLE = ("#0072b2", "-")
_ORANGE = "#d55e00"
"""The colour of the DataLoader."""
_INK = "#222222"
_INCHES = (5.4, 3.8)
_DOTS_PER_INCH = 200
_BESIDE, _BELOW = 7, 0.27
"""Offsets of the dots of rounds, which would otherwise hide the error bars. In the plot of times,
dots move left, by points. In the plot of rates, they move down, by a share of the distance between
bars.
"""
_LINE_INCHES = 0.17
"""The height of a line of the caption."""
_CAPTION_WIDTH = 92
"""The largest number of characters in a line of the caption."""
_FEW = 4
"""A plot has room for at least this many bars; a single bar would otherwise fill it."""
_TEXT_ROOM = 1.7
"""How much longer the axis of rates is than the longest bar: room for the means beside the bars."""
_CROWDED = 0.3
"""Points closer than this share of the x range have texts alternately above and below them."""
_EDGE = 0.985
"""The x position of the rounds of an engine without workers, as a share of the axis."""
_APART = 0.03
"""The distance between the positions of two such engines."""
_DOT: dict[str, Any] = {
    "marker": "o",
    "s": 14,
    "facecolors": "none",
    "edgecolors": _INK,
    "linewidths": 0.8,
    "zorder": 3,
}
_LOG_FROM = 5.0
"""The axis of times is logarithmic if the largest mean is this many times the smallest."""
_TICKS = (1.0, 2.0, 5.0)
"""The ticks in a decade. matplotlib's own labels, such as 3 x 10^2 and 4 x 10^2, overlap."""


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Write time.png, time.svg, rate.png and rate.svg to `folder`; return their paths."""
    import matplotlib

    paths = []
    # With a fixed salt the same comparison yields the same file.
    with matplotlib.rc_context({"svg.hashsalt": "gpupipe", "font.size": 11}):
        for name, figure in (("time", time_per_batches(comparison)), ("rate", rates(comparison))):
            title: dict[str, Any] = {"Title": figure.axes[0].get_title(loc="left")}
            for suffix, undated in (("png", {}), ("svg", {"Date": None})):
                paths.append(folder / f"{name}.{suffix}")
                figure.savefig(paths[-1], dpi=_DOTS_PER_INCH, metadata=title | undated)
    return paths


def time_per_batches(comparison: Comparison) -> Figure:
    """Plot seconds per 100 batches over the number of DataLoader workers.

    Engines without workers appear as horizontal lines.
    """
    size = comparison.data.get("batch_size")
    of = "" if size is None else f" of {size} images"
    figure, axes = _create_figure(f"Time for 100 batches{of}", "lower is better")
    axes.set_ylabel("seconds")
    engines = [r for r in comparison.measured if r.contestant.workers is None]
    for number, result in enumerate(engines):
        _draw_across(axes, result, _EDGE - number * _APART)
    if comparison.loaders:
        _draw_against_workers(axes, comparison.loaders)
    else:
        axes.set_xticks([])
        axes.set_xlabel("the DataLoader was not measured")
    if _is_log_better([statistics.fmean(r.times) for r in comparison.measured]):
        axes.set_yscale("log")
        _write_plain_ticks(axes.yaxis)
        axes.set_ylabel("seconds, on a logarithmic axis")
        axes.set_ylim(top=_find_tick_above(_find_top(comparison.measured)))
    else:
        axes.set_ylim(0, _find_linear_ticks(_find_top(comparison.measured))[-1])
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize="small"
    )
    _write_caption(figure, comparison)
    return figure


def _find_top(results: Sequence[Result]) -> float:
    """Return the largest time that is drawn: of a round, or the end of an error bar."""
    ends = [statistics.fmean(r.times) + (deviation(r.times) or 0.0) for r in results]
    return max([*ends, *(seconds for r in results for seconds in r.times)], default=1.0)


def _find_tick_above(value: float) -> float:
    """Return the smallest tick of a logarithmic axis that is at least `value`."""
    decade: float = 10.0 ** math.floor(math.log10(value))
    return next(tick for n in (*_TICKS, 10.0) if (tick := n * decade) >= value)


def _find_linear_ticks(top: float, max_count: int = 6) -> list[float]:
    """Return the ticks of a linear axis from 0 to the first one that is at least `top`."""
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(max_count).tick_values(0, top)]


def _draw_across(axes: Axes, result: Result, place: float) -> None:
    """Draw an engine without workers: mean as a line, deviation as a band, rounds as dots.

    The dots have the colour of the engine, and are at `place`, a share of the axis.
    """
    name, mean = result.contestant.name, statistics.fmean(result.times)
    spread = deviation(result.times) or 0.0
    color, dashes = _STYLES.get(name, _OTHER_STYLE)
    label = f"{name} ({_format_times(result)} s)"
    axes.axhline(mean, color=color, linestyle=dashes, linewidth=2, label=label)
    axes.axhspan(mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
    at_edge = axes.get_yaxis_transform()
    dots = _DOT | {"edgecolors": color}
    axes.scatter([place] * len(result.times), result.times, transform=at_edge, **dots)


def _draw_against_workers(axes: Axes, loaders: Sequence[Result]) -> None:
    """Draw the DataLoaders' means over their workers, with error bars, and each round as a dot."""
    from matplotlib.transforms import ScaledTranslation

    counts = [r.contestant.workers or 0 for r in loaders]
    means = [statistics.fmean(r.times) for r in loaders]
    bars = _list_bars([deviation(r.times) for r in loaders])
    style: dict[str, Any] = {"color": _ORANGE, "marker": "o", "linewidth": 2, "capsize": 4}
    axes.errorbar(counts, means, bars, label="DataLoader", **style)
    beside = axes.transData + ScaledTranslation(-_BESIDE / 72, 0, axes.figure.dpi_scale_trans)
    for number, (count, mean, result) in enumerate(zip(counts, means, loaders, strict=True)):
        dots = _DOT | {"edgecolors": _ORANGE}
        axes.scatter([count] * len(result.times), result.times, transform=beside, **dots)
        axes.annotate(
            _format_times(result),
            (count, mean),
            xytext=(8, -14 if number % 2 == 0 and _is_crowded(counts, number) else 6),
            textcoords="offset points",
            color=_INK,
            fontsize="small",
        )
    axes.set_xticks(counts)
    room = 0.4 + 0.08 * (counts[-1] - counts[0])
    axes.set_xlim(counts[0] - room, counts[-1] + 3 * room)
    axes.set_xlabel("workers of the DataLoader")


def rates(comparison: Comparison) -> Figure:
    """Plot images per second, one bar per contestant."""
    figure, axes = _create_figure("Images a second", "higher is better")
    axes.set_xlabel("images/s")
    results = comparison.measured[::-1]
    names, means = [r.contestant.name for r in results], [r.mean for r in results]
    colors = [
        _STYLES.get(r.contestant.name, _OTHER_STYLE)[0] if r.contestant.workers is None else _ORANGE
        for r in results
    ]
    bars = _list_bars([r.deviation for r in results])
    axes.barh(names, means, xerr=bars, color=colors, alpha=0.85, capsize=4)
    # The axis starts at 0, so that lengths compare: an error bar may reach below it, a rate cannot.
    top = max([r.mean + (r.deviation or 0.0) for r in results] or [1.0])
    axes.set_xlim(0, _TEXT_ROOM * max([top, *(rate for r in results for rate in r.rates)]))
    axes.set_xticks(_find_linear_ticks(top, 3))
    for y, r in enumerate(results):
        axes.scatter(r.rates, [y - _BELOW] * len(r.rates), **_DOT)
        _write_mean(axes, y, r)
    middle, half = (len(results) - 1) / 2, max(len(results), _FEW) / 2
    axes.set_ylim(middle - half, middle + half)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    _write_caption(figure, comparison)
    return figure


def _write_mean(axes: Axes, y: int, result: Result) -> None:
    """Write the mean and its deviation after the bar, its error bar and its rounds."""
    spread = result.deviation if len(result.rates) > 1 else None
    axes.annotate(
        f"{result.mean:,.0f}" if spread is None else format_spread(result.mean, spread),
        (max(result.mean + (spread or 0.0), *result.rates), y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=_INK,
        fontsize="small",
    )


def _write_caption(figure: Figure, comparison: Comparison) -> None:
    """Write the sentences of `describe` below the axes, and enlarge the figure for them."""
    lines = [line for text in describe(comparison) for line in textwrap.wrap(text, _CAPTION_WIDTH)]
    width, height = figure.get_size_inches()
    room = _LINE_INCHES * (len(lines) + 0.5)
    figure.set_size_inches(width, height + room)
    share = room / (height + room)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, share, 1, 1 - share))
    style: dict[str, Any] = {"va": "top", "fontsize": "x-small", "color": "#444444", "wrap": False}
    figure.text(0.02, share, "\n".join(lines), **style)


def describe(comparison: Comparison) -> list[str]:
    """Return the sentences of a plot's caption: the data, the machine, and what the marks mean.

    A warning about a disturbed measurement comes first.
    """
    this, data = machine(), comparison.data
    images = f"{data['images']:,} images, pipeline {data['pipeline']}" if data else "no data"
    gpu = f", {this['gpu']}" if this["gpu"] else ""
    return [
        *comparison.disturbed,
        f"Data: {'; '.join([images, *comparison.plain_notes])}.",
        f"Machine: {this['processor']}, {counted(len(comparison.contest.cores), 'core')}{gpu}.",
        "Numbers, lines and bars are means ± one standard deviation; each circle is one round.",
    ]


def _list_bars(deviations: Sequence[float | None]) -> list[float] | None:
    """Return the error bars; None after a single round, since a zero bar would claim no error."""
    return [deviation or 0.0 for deviation in deviations] if any(deviations) else None


def _format_times(result: Result) -> str:
    """Format the mean of a result's times; that of a single round with three digits."""
    mean, spread = statistics.fmean(result.times), deviation(result.times)
    if spread is None:
        return f"{mean:,.0f}" if mean >= 100 else f"{mean:#.3g}"
    return format_spread(mean, spread)


def format_spread(mean: float, spread: float) -> str:
    """Format a mean and its deviation: two digits of the deviation, and the mean rounded alike."""
    if not spread:
        return f"{mean:,.3g} ± 0"
    spread = float(f"{spread:.1e}")
    places = 1 - math.floor(math.log10(spread))
    digits = max(0, places)
    return f"{round(mean, places):,.{digits}f} ± {spread:,.{digits}f}"


def _is_crowded(counts: Sequence[int], number: int) -> bool:
    """Return whether text to the right of the point `counts[number]` would reach the next one."""
    after = counts[number + 1 :]
    return bool(after) and after[0] - counts[number] < _CROWDED * (counts[-1] - counts[0])


def _create_figure(title: str, which_way: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{title}, {which_way}", loc="left", fontsize=10, weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _is_log_better(means: Sequence[float]) -> bool:
    """Whether the means differ so much that a linear axis would hide small ones."""
    return bool(means) and 0 < _LOG_FROM * min(means) < max(means)


def _write_plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with 1, 2, 5, 10, 20, 50, 100, ... and leave out minor labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=_TICKS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
