"""What the plots of a comparison show: read from matplotlib's own objects."""

import dataclasses
import itertools
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gpupipe.bench import plots
from helpers.made_comparison import BATCH_SIZE, RATES, measured


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
    assert axes.get_yscale() == "log", "GPU and DataLoader differ by more than five times"
    assert axes.get_ylabel() == "seconds, on a logarithmic axis"
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


NEAR = {
    "DALI on CPU": [1315.0, 3203.0, 2259.0],
    "DataLoader, 1 worker": [700.0, 750.0, 800.0],
    "DataLoader, 2 workers": [1700.0, 1650.0, 1800.0],
}


def test_a_mean_is_written_after_its_bar_its_error_bar_and_its_rounds() -> None:
    axes = plots.rates(measured(NEAR)).axes[0]
    texts = {text.get_text(): text for text in axes.texts}
    # two digits of the deviation, and the mean rounded alike: 2,259 ± 944 is 2,260 ± 940
    assert list(texts) == ["1,717 ± 76", "750 ± 50", "2,260 ± 940"]
    assert texts["2,260 ± 940"].xy[0] == pytest.approx(2259 + statistics.stdev(NEAR["DALI on CPU"]))
    assert texts["750 ± 50"].xy[0] == 800


@pytest.mark.parametrize("rates", [NEAR, RATES], ids=["near", "far apart"])
def test_texts_of_rates_are_in_the_figure_and_tick_labels_apart(
    rates: dict[str, list[float]],
) -> None:
    figure = plots.rates(measured(rates))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert all(text.get_window_extent().x1 < figure.bbox.x1 for text in axes.texts)
    labels = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(labels))


@pytest.mark.parametrize(
    ("mean", "spread", "expected"),
    [
        (2259.0, 944.0, "2,260 ± 940"),
        (56.19, 0.9996, "56.2 ± 1.0"),
        (0.1793, 0.0214, "0.179 ± 0.021"),
        (750.0, 0.0, "750 ± 0"),
    ],
)
def test_two_digits_of_a_deviation_and_a_mean_rounded_alike(
    mean: float, spread: float, expected: str
) -> None:
    assert plots.format_spread(mean, spread) == expected


def test_rates_are_on_a_linear_axis_and_times_on_a_logarithmic_one_beyond_five_times() -> None:
    axes = plots.rates(measured(RATES)).axes[0]
    assert axes.get_xscale() == "linear"
    assert axes.get_xlim()[0] == 0
    assert plots.time_per_batches(measured(RATES)).axes[0].get_yscale() == "log"
    assert plots.time_per_batches(measured(NEAR)).axes[0].get_yscale() == "linear"
    assert plots.time_per_batches(measured(NEAR)).axes[0].get_ylim()[0] == 0


@pytest.mark.parametrize("rates", [NEAR, RATES], ids=["linear", "log"])
def test_a_tick_is_above_all_times(rates: dict[str, list[float]]) -> None:
    figure = plots.time_per_batches(measured(rates))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    largest = max(100 * BATCH_SIZE / rate for each in rates.values() for rate in each)
    bottom, top = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if bottom <= tick <= top * (1 + 1e-9)]
    assert max(ticks) >= largest


def test_circles_of_engines_differ_in_colour_and_place() -> None:
    axes = plots.time_per_batches(measured(RATES)).axes[0]
    circles = [dots for dots in axes.collections if len(dots.get_offsets()) == 3]
    drawn = [(tuple(c.get_edgecolor()[0]), c.get_offsets()[0][0]) for c in circles]
    across = [place for _, place in drawn if 0.5 < place < 1]
    assert len(set(across)) == len(across) == 2
    assert len({color for color, _ in drawn}) == 3, "two engines, and the DataLoader"


@pytest.mark.parametrize("plot", [plots.rates, plots.time_per_batches])
def test_ticks_are_plain_numbers_and_the_title_fits(plot: Callable[..., Any]) -> None:
    figure = plot(measured(RATES))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    axis = axes.xaxis if plot is plots.rates else axes.yaxis
    texts = [tick.label1.get_text() for tick in axis.get_major_ticks()]
    if plot is plots.time_per_batches:
        assert {text.replace(",", "").strip("0")[:1] for text in texts} <= set("125.")
    assert all(re.fullmatch(r"[\d,.]+", text) for text in texts)
    assert [t.get_text() for t in axis.get_minorticklabels() if t.get_text()] == []
    title = next(t for t in (axes.title, axes._left_title) if t.get_text())
    assert title.get_window_extent().x1 < figure.bbox.x1


def test_rounds_of_dali_are_drawn_too() -> None:
    axes = plots.time_per_batches(measured(NEAR)).axes[0]
    drawn = [sorted(dots.get_offsets()[:, 1].tolist()) for dots in axes.collections]
    assert sorted(100 * BATCH_SIZE / rate for rate in NEAR["DALI on CPU"]) in [
        pytest.approx(rounds) for rounds in drawn if len(rounds) == 3
    ]


def test_every_file_carries_its_caption(tmp_path: Path) -> None:
    comparison = measured(NEAR)
    note = "DISTURBED: other processes kept up to 1.2 of these cores busy"
    noted = dataclasses.replace(comparison, notes=[*comparison.notes, note])
    sentences = plots.describe(noted)
    assert sentences[0] == note, "above all else"
    assert "2,000 images, pipeline affine; stand-in data" in sentences[1]
    assert "2 cores" in sentences[2]
    assert "each circle is one round" in sentences[3]
    for path in plots.save(noted, tmp_path):
        if path.suffix == ".svg":
            continue
        plain = tmp_path / "plain"
        plain.mkdir(exist_ok=True)
        plots.save(comparison, plain)
        with Image.open(path) as with_note, Image.open(plain / path.name) as without:
            assert with_note.height > without.height, "one line more"
    for figure in (plots.rates(noted), plots.time_per_batches(noted)):
        (caption,) = figure.texts
        assert caption.get_text().replace("\n", " ") == " ".join(sentences)
