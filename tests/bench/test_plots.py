"""What the plots of a comparison show: read from matplotlib's own objects."""

from __future__ import annotations

import statistics

import pytest
from made_comparison import BATCH_SIZE, RATES, measured

from gpupipe.bench import plots


def seconds(name: str) -> list[float]:
    return [100 * BATCH_SIZE / rate for rate in RATES[name]]


def test_time_is_drawn_against_workers_with_error_bars() -> None:
    axes = plots.time_per_batches(measured(RATES)).axes[0]
    (bars,) = axes.containers
    line, _, (spans,) = bars.lines
    names = ["DataLoader, 0 workers", "DataLoader, 1 worker", "DataLoader, 16 workers"]
    assert list(line.get_xdata()) == [0, 1, 16]
    assert list(line.get_ydata()) == pytest.approx([statistics.fmean(seconds(n)) for n in names])
    halves = [(top - bottom) / 2 for (_, bottom), (_, top) in spans.get_segments()]
    assert halves == pytest.approx([statistics.stdev(seconds(n)) for n in names])
    across = {
        text.get_label().partition(" (")[0]: text.get_ydata()[0]
        for text in axes.lines
        if str(text.get_label()).startswith("DALI")
    }
    assert across == {
        n: pytest.approx(statistics.fmean(seconds(n))) for n in ("DALI on GPU", "DALI on CPU")
    }
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylabel() == "seconds"
    assert "workers" in axes.get_xlabel()


def test_rates_are_bars_from_zero_with_error_bars_even_where_the_deviation_is_larger() -> None:
    axes = plots.rates(
        measured({"DALI on CPU": [300.0, 10.0, 20.0], "DataLoader, 1 worker": [50.0, 51.0, 52.0]})
    ).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "DataLoader, 1 worker",
        "DALI on CPU",
    ]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([51, 110])
    assert axes.get_xlim()[0] == 0
    spans = (
        next(c for c in axes.containers if c.__class__.__name__ == "ErrorbarContainer")
        .lines[2][0]
        .get_segments()
    )
    assert [(right - left) / 2 for (left, _), (right, _) in spans] == pytest.approx(
        [1, statistics.stdev([300, 10, 20])]
    )


def test_a_single_round_has_no_error_bar() -> None:
    one = measured({"DALI on CPU": [300.0], "DataLoader, 1 worker": [50.0]})
    assert not [
        c
        for c in plots.rates(one).axes[0].containers
        if c.__class__.__name__ == "ErrorbarContainer"
    ]
    assert plots.time_per_batches(one).axes[0].containers[0].lines[2] == ()
