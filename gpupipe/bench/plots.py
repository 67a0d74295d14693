"""Plots a comparison: means, error bars of one standard deviation, and one dot per round."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.bench.comparison import Comparison, Result
from gpupipe.bench.machine import machine
from gpupipe.bench.statistics import deviation
from gpupipe.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which is safe for colour-blind readers; dashes differ too.
_GREEN, _BLUE, _ORANGE, _PURPLE = "#009e73", "#0072b2", "#d55e00", "#cc79a7"
_COLORS = {"DALI on GPU": _GREEN, "DALI on CPU": _BLUE, "CPU engine": _PURPLE}
_DASHES = {"DALI on GPU": "--", "DALI on CPU": "-.", "CPU engine": ":"}
_INCHES = (5.4, 3.8)
_DOTS_PER_INCH = 200
_BESIDE, _BELOW = 7, 0.27
"""The offset of the rounds' dots, so that they do not hide the error bar: points to its left, and
bar widths below it.
"""
_LINE_INCHES = 0.17
"""The height of a line of the caption."""
_CAPTION_WIDTH = 92
"""Letters in a line of the caption."""
_FEW = 4
"""The least number of bars to leave room for: one or two alone would be as thick as the plot."""
_LETTER = 0.026
"""The width of a letter of a mean, as a share of the axis."""
_CROWDED = 0.3
"""The least distance of two points with texts on one side, as a share of all counts."""
_EDGE = 0.985
"""Where the rounds of sides without workers are, as a share of the axis."""
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

    Engines without workers appear as horizontal lines.
    """
    figure, axes = _figure(f"Time for 100 batches{_batch_size(comparison)}", "lower is better")
    axes.set_ylabel("seconds")
    across = [r for r in comparison.measured if r.side.workers is None]
    for r in across:
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
    _draw_rounds_across(axes, across)
    if _is_log_better([statistics.fmean(_times(r)) for r in comparison.measured]):
        axes.set_yscale("log")
        _write_plain_ticks(axes.yaxis)
        axes.set_ylabel("seconds, on a logarithmic axis")
    else:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize="small"
    )
    _write_caption(figure, comparison)
    return figure


def _across(axes: Axes, result: Result) -> None:
    """Draw a horizontal line for the mean, and a band of one standard deviation on either side."""
    times, name = _times(result), result.side.name
    mean, spread, color = statistics.fmean(times), deviation(times) or 0.0, _COLORS.get(name, _BLUE)
    axes.axhline(
        mean,
        color=color,
        linestyle=_DASHES.get(name, "-"),
        linewidth=2,
        label=f"{name} ({_short(mean)}{_plus_minus(_rough, times)} s)",
    )
    axes.axhspan(mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)


def _against_workers(axes: Axes, loaders: Sequence[Result]) -> None:
    from matplotlib.transforms import ScaledTranslation

    counts, times_by_count = [r.side.workers or 0 for r in loaders], [_times(r) for r in loaders]
    means = [statistics.fmean(times) for times in times_by_count]
    axes.errorbar(
        counts,
        means,
        _bars([deviation(times) or 0.0 for times in times_by_count]),
        color=_ORANGE,
        marker="o",
        linewidth=2,
        capsize=4,
        label="DataLoader",
    )
    beside = axes.transData + ScaledTranslation(-_BESIDE / 72, 0, axes.figure.dpi_scale_trans)
    numbered = enumerate(zip(counts, means, times_by_count, strict=True))
    for number, (count, mean, times) in numbered:
        axes.scatter([count] * len(times), times, transform=beside, **_DOT)
        axes.annotate(
            f"{_short(mean)}{_plus_minus(_rough, times)}",
            (count, mean),
            xytext=(8, -14 if number % 2 == 0 and _is_crowded(counts, number) else 6),
            textcoords="offset points",
            color="#222222",
            fontsize="small",
        )
    axes.set_xticks(counts)
    room = 0.4 + 0.08 * (max(counts) - min(counts))
    axes.set_xlim(min(counts) - room, max(counts) + 3 * room)
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
    least = min((min(r.rates) for r in results), default=1.0)
    if is_log := _is_log_better([r.mean for r in results]):
        axes.set_xscale("log")
        axes.set_xlabel("images/s, on a logarithmic axis")
        axes.set_xlim(least / 2, axes.get_xlim()[1])
    else:
        # Start at 0: an error bar may reach below it, a rate cannot.
        axes.set_xlim(0, axes.get_xlim()[1] * 1.1)
    for y, r in enumerate(results):
        axes.scatter(r.rates, [y - _BELOW] * len(r.rates), **_DOT)
        _write_mean(axes, y, r)
    middle, half = (len(results) - 1) / 2, max(len(results), _FEW) / 2
    axes.set_ylim(middle - half, middle + half)
    if is_log:
        _write_plain_ticks(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=6)
    _write_caption(figure, comparison)
    return figure


def _write_mean(axes: Axes, y: int, result: Result) -> None:
    """Write the mean and its deviation into a bar, or behind it if the bar is too short."""
    text = f"{result.mean:,.0f}{_plus_minus('{:,.0f}'.format, result.rates)}"
    to_fraction = (axes.transData - axes.transAxes).transform
    begin = result.mean - (result.deviation or 0.0)
    fits = to_fraction((max(begin, axes.get_xlim()[0]), y))[0] > _LETTER * len(text)
    end = max(result.mean + (result.deviation or 0.0), *result.rates)
    axes.annotate(
        text,
        (axes.get_xlim()[0] if fits else end, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color="white" if fits else "#222222",
        weight="bold" if fits else "normal",
        annotation_clip=False,
    )


def _draw_rounds_across(axes: Axes, across: Sequence[Result]) -> None:
    """Draw the rounds of the sides without workers, at the right edge."""
    at_edge = axes.get_yaxis_transform()
    for r in across:
        axes.scatter([_EDGE] * len(r.outcomes), _times(r), transform=at_edge, **_DOT)


def _plus_minus(form: Callable[[float], str], values: Sequence[float]) -> str:
    """Return " ± 944"; nothing for a single round."""
    return f" ± {form(statistics.stdev(values))}" if len(values) > 1 else ""


def _write_caption(figure: Figure, comparison: Comparison) -> None:
    """Write below the axes what a reader of the picture alone must know."""
    lines = [line for text in describe(comparison) for line in textwrap.wrap(text, _CAPTION_WIDTH)]
    width, height = figure.get_size_inches()
    room = _LINE_INCHES * (len(lines) + 0.5)
    figure.set_size_inches(width, height + room)
    share = room / (height + room)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, share, 1, 1 - share))
    figure.text(
        0.02, share, "\n".join(lines), va="top", fontsize="x-small", color="#444444", wrap=False
    )


def describe(comparison: Comparison) -> list[str]:
    """Return the sentences of a plot's caption: the data, the machine, and what the marks mean.

    What disturbed the measurement comes first.
    """
    this = machine()
    data = next((o.data for r in comparison.measured for o in r.outcomes), {})
    images = f"{data['images']:,} images, pipeline {data['pipeline']}" if data else "no data"
    urgent, others = comparison.disturbed, comparison.plain_notes
    gpu = f", {this['gpu']}" if this["gpu"] else ""
    return [
        *urgent,
        f"Data: {images}{''.join(f'; {note}' for note in others)}.",
        f"Machine: {this['processor']}, {counted(len(comparison.contest.cores), 'core')}{gpu}.",
        "Numbers, lines and bars are means ± one standard deviation; each circle is one round.",
    ]


def _times(result: Result) -> list[float]:
    """Return the seconds per 100 batches in each round."""
    return [100 * o.seconds / o.batches for o in result.outcomes]


def _bars(deviations: list[float]) -> list[float] | None:
    """Return the error bars; None for single rounds, since a zero width would claim no error."""
    return deviations if any(deviations) else None


def _short(seconds: float) -> str:
    """Format with three digits."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:#.3g}"


def _rough(seconds: float) -> str:
    """Format with two digits."""
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:#.2g}"


def _is_crowded(counts: Sequence[int], number: int) -> bool:
    """Whether the text right of a point would reach the next one."""
    after = counts[number + 1 :]
    return bool(after) and after[0] - counts[number] < _CROWDED * (counts[-1] - counts[0])


def _batch_size(comparison: Comparison) -> str:
    data = next((o.data for r in comparison.measured for o in r.outcomes), {})
    return f" of {data['batch_size']} images" if "batch_size" in data else ""


def _figure(title: str, which_way: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{title}, {which_way}", loc="left", fontsize=10, weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


_LOG_FROM = 5.0
"""How many times the smallest mean the largest is, from which on an axis is logarithmic."""
_TICKS = (1.0, 2.0, 5.0)
"""The ticks of a decade. matplotlib's own, such as 3 x 10^2 beside 4 x 10^2, cover each other."""


def _is_log_better(means: Sequence[float]) -> bool:
    """Whether the largest mean is so many times the smallest that small ones would be hidden."""
    return bool(means) and 0 < _LOG_FROM * min(means) < max(means)


def _write_plain_ticks(axis: Axis) -> None:
    """Write 1, 2, 5, 10, 20, 50, 100, ... at a logarithmic axis, and nothing at its minor ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=_TICKS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
