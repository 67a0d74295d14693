"""The charts of the README and of docs/performance.md: bars from zero, in a light and a dark theme.

    # benchmarks/results/*.json to docs/images/{rates,recipes,formats,steps}-{light,dark}.svg
    python benchmarks/draw_rates.py

A bar is the median over the rounds, its line the lowest and the highest of them. The label of the
axis names the machine and the day of the run.
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[1]
IMAGES = _REPOSITORY / "docs" / "images"
_RATE = "images a second"
_WORKLOADS = {
    "lfw-affine": "affine\n250x250",
    "imagenet_train": "imagenet_train\n500x375",
    "imagenet_eval": "imagenet_eval\n500x375",
}
_LOADERS = {
    "gpupipe-cpu": "gpupipe, engine: cpu",
    "gpupipe-dali": "gpupipe, engine: dali on the CPU",
    "hand-written": "DALI on the CPU, written by hand",
    "opencv": "OpenCV on threads, written by hand",
    "torchvision": "torchvision, best DataLoader",
}
_RECIPES = {
    "torchvision_resnet50_v2": "torchvision_\nresnet50_v2",
    "timm_a2": "timm_a2",
    "simclr": "simclr",
}
_FORMATS = {
    "hf": "Arrow (hf)",
    "hf_parquet": "Parquet (hf)",
    "lmdb": "LMDB",
    "zip_stored": "ZIP, stored",
    "zip_deflated": "ZIP, deflated",
}


@dataclass(frozen=True)
class _Theme:
    ink: str
    grid: str
    paper: str
    bars: tuple[str, ...]


_THEMES = {
    "light": _Theme(
        "#1f2328", "#d1d9e0", "#ffffff", ("#0969da", "#54aeff", "#6e7781", "#8c959f", "#b6bfc8")
    ),
    "dark": _Theme(
        "#f0f6fc", "#3d444d", "#0d1117", ("#4493f8", "#1f5fc4", "#b1bac4", "#848d97", "#59626c")
    ),
}


@dataclass(frozen=True)
class _Chart:
    """Groups of bars.

    Attributes:
        groups: The labels of the groups, from top to bottom.
        series: By its title, the values of each group: one a round.
        unit: What the values are.
        machine: The machine and the time of the run, as the result names them.
        digits: Decimals of the numbers beside the bars.
    """

    groups: list[str]
    series: dict[str, list[list[float]]]
    unit: str
    machine: dict[str, Any]
    digits: int = 0


def main() -> None:
    draw_all(IMAGES)


def draw_all(folder: Path) -> list[Path]:
    """Draw each chart in each theme, and return the paths of the SVG files."""
    paths = []
    for name, read in CHARTS.items():
        chart = read()
        for theme_name, theme in _THEMES.items():
            paths.append(folder / f"{name}-{theme_name}.svg")
            _draw(chart, theme, paths[-1])
    return paths


def _load(name: str) -> dict[str, Any]:
    content = json.loads((_REPOSITORY / "benchmarks" / "results" / f"{name}.json").read_text())
    return dict(content)


def _get_rates(rounds: dict[str, list[dict[str, float]]]) -> dict[str, list[float]]:
    return {name: [one["images_per_second"] for one in found] for name, found in rounds.items()}


def _read_rates() -> _Chart:
    series: dict[str, list[list[float]]] = {title: [] for title in _LOADERS.values()}
    for workload in _WORKLOADS:
        content = _load(f"core.{workload}.engines")
        rates = _get_rates(content["workloads"][workload]["rounds"])
        candidates = [name for name in rates if name.startswith("torchvision")]
        rates["torchvision"] = rates[max(candidates, key=lambda name: max(rates[name]))]
        for loader, title in _LOADERS.items():
            series[title].append(rates[loader])
    return _Chart(list(_WORKLOADS.values()), series, _RATE, content["machine"])


def _read_recipes() -> _Chart:
    ours, theirs = [], []
    for recipe in _RECIPES:
        content = _load(f"recipes.cpu.{recipe}")
        result = content["recipes"][recipe]
        rates = _get_rates(result["rounds"])
        ours.append(rates["gpupipe"])
        theirs.append(rates[result["against"]])
    series = {_LOADERS["gpupipe-cpu"]: ours, _LOADERS["torchvision"]: theirs}
    return _Chart(list(_RECIPES.values()), series, _RATE, content["machine"])


def _read_formats() -> _Chart:
    content = _load("libraries")
    formats = content["formats"] | _load("libraries.zip_deflated")["formats"]
    found = [_get_rates(formats[name]["rounds"]) for name in _FORMATS]
    series = {
        _LOADERS["gpupipe-cpu"]: [rates["gpupipe"] for rates in found],
        "the library, in a DataLoader": [rates["library"] for rates in found],
    }
    return _Chart(list(_FORMATS.values()), series, _RATE, content["machine"])


def _read_steps() -> _Chart:
    content = _load("steps")
    ratios = [step["ratio"] for step in content["steps"].values()]
    # A cost is a difference of two times: one that is too small to be measured may be below 0.
    values = [[max(0.0, ratio[end]) for end in ("min", "median", "max")] for ratio in ratios]
    unit = "CPU time of gpupipe over that of the fastest other"
    return _Chart(list(content["steps"]), {"": values}, unit, content["machine"], 2)


CHARTS: dict[str, Callable[[], _Chart]] = {
    "rates": _read_rates,
    "recipes": _read_recipes,
    "formats": _read_formats,
    "steps": _read_steps,
}
"""By the beginning of the names of its files, what reads a chart's values."""


def _draw(chart: _Chart, theme: _Theme, path: Path) -> None:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("svg")
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "gpupipe",
        "font.size": 10,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.edgecolor": theme.grid,
        "grid.color": theme.grid,
    }
    bars = len(chart.series)
    pitch = 0.8 / bars
    with mpl.rc_context(style):
        # Narrow: on a phone the page shows a chart at three quarters of its size.
        figure, axes = plt.subplots(figsize=(4.2, 0.22 * len(chart.groups) * (bars + 0.25) + 0.5))
        for number, (title, groups) in enumerate(chart.series.items()):
            for group, values in enumerate(groups):
                middle, at = statistics.median(values), group + (number - (bars - 1) / 2) * pitch
                label = title if not group else ""
                axes.barh(
                    at, middle, pitch * 0.9, color=theme.bars[_shade(number, bars)], label=label
                )
                axes.plot([min(values), max(values)], [at, at], color=theme.ink, linewidth=1)
                axes.annotate(
                    f"{middle:z,.{chart.digits}f}",
                    (max(0, *values), at),
                    (4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9,
                )
        axes.set_yticks(range(len(chart.groups)), chart.groups)
        axes.set_ylim(len(chart.groups) - 0.5, -0.5)
        axes.set_xlim(min(0, *(min(v) for g in chart.series.values() for v in g)), None)
        axes.grid(axis="x", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
        axes.xaxis.set_major_formatter("{x:,g}")
        machine = chart.machine
        axes.set_xlabel(
            f"{chart.unit}\n{machine['processor']}, {machine['cores']} cores, "
            f"{machine['time'][:10]}\nmedians and ranges of interleaved rounds",
            x=0,
            ha="left",
        )
        if bars > 1:
            axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _shade(number: int, bars: int) -> int:
    """Return the number of a bar's colour: of two bars, the second is not gpupipe's."""
    return 3 if bars == 2 and number else number


if __name__ == "__main__":
    main()
