"""The chart of the README: images a second of three pipelines on a CPU, by loader.

    # benchmarks/results/core.*.engines.json to docs/images/rates-light.svg and rates-dark.svg
    python benchmarks/draw_rates.py

A bar is the median over the rounds, its line the lowest and the highest of them. The caption names
the machine and the day of the run.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[1]
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


@dataclass(frozen=True)
class _Theme:
    ink: str
    grid: str
    bars: tuple[str, ...]


_THEMES = {
    "light": _Theme("#1f2328", "#d1d9e0", ("#0969da", "#54aeff", "#8c959f", "#afb8c1", "#d0d7de")),
    "dark": _Theme("#f0f6fc", "#3d444d", ("#4493f8", "#1f6feb", "#9198a1", "#656c76", "#444c56")),
}


def main() -> None:
    results = {name: _read(name) for name in _WORKLOADS}
    for name, theme in _THEMES.items():
        _draw(results, theme, _REPOSITORY / "docs" / "images" / f"rates-{name}.svg")


def _read(workload: str) -> dict[str, Any]:
    path = _REPOSITORY / "benchmarks" / "results" / f"core.{workload}.engines.json"
    content = json.loads(path.read_text())
    rounds = content["workloads"][workload]["rounds"]
    rates = {
        name: [one["images_per_second"] for one in outcomes] for name, outcomes in rounds.items()
    }
    best = max(
        (name for name in rates if name.startswith("torchvision")), key=lambda n: max(rates[n])
    )
    rates["torchvision"] = rates[best]
    return {"rates": rates, "machine": content["machine"]}


def _draw(results: dict[str, dict[str, Any]], theme: _Theme, path: Path) -> None:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("svg")
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "gpupipe",
        "font.size": 10,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.edgecolor": theme.grid,
        "grid.color": theme.grid,
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(figsize=(8.4, 5.2))
        height = 0.16
        for number, (loader, title) in enumerate(_LOADERS.items()):
            for place, workload in enumerate(_WORKLOADS):
                rates = results[workload]["rates"][loader]
                middle, at = statistics.median(rates), place + (number - 2) * height
                axes.barh(
                    at,
                    middle,
                    height * 0.9,
                    color=theme.bars[number],
                    label=title if not place else "",
                )
                axes.plot([min(rates), max(rates)], [at, at], color=theme.ink, linewidth=1)
                axes.annotate(
                    f"{middle:,.0f}",
                    (max(rates), at),
                    (4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                )
        axes.set_yticks(range(len(_WORKLOADS)), list(_WORKLOADS.values()))
        axes.invert_yaxis()
        axes.set_xlim(0, None)
        axes.grid(axis="x", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        machine = results["lfw-affine"]["machine"]
        axes.set_xlabel(
            f"images a second, {machine['cores']} cores ({machine['processor']}), "
            f"{machine['time'][:10]}: medians and ranges of interleaved rounds"
        )
        axes.legend(frameon=False, loc="lower right")
        figure.savefig(
            path, bbox_inches="tight", transparent=True, metadata={"Date": None, "Creator": None}
        )
        plt.close(figure)


if __name__ == "__main__":
    main()
