"""Writes tables into README.md, docs/performance.md, docs/arrays.md and docs/comparing.md, from the
results in benchmarks/results: the rates of three pipelines, the steps, also of arrays and without
the extensions, the interpreter's lock, and what `gpupipe compare` prints.

python benchmarks/performance_tables.py
"""

import io
import json
import math
import textwrap
from statistics import median
from typing import Any

import draw_comparison
import gil
import harness
from rich.console import Console

from gpupipe.bench import tables
from gpupipe.bench.comparison import describe_verdict
from gpupipe.bench.parity import Agreement
from gpupipe.engines import registry

README = harness.REPOSITORY / "README.md"
PAGE = harness.REPOSITORY / "docs" / "performance.md"
ARRAYS = harness.REPOSITORY / "docs" / "arrays.md"
COMPARING = harness.REPOSITORY / "docs" / "comparing.md"
TABLES = {
    "rates in brief": README,
    "rates": PAGE,
    "steps in brief": PAGE,
    "steps": PAGE,
    "steps without extensions in brief": PAGE,
    "steps without extensions": PAGE,
    "steps of arrays": ARRAYS,
    "lock": PAGE,
    "comparison": COMPARING,
}
"""The page of each table."""
_LIBRARIES = ("albumentationsx", "albumentations", "torchvision")
_CORES = ("8", "32", "96")
_LIMITS = {"the time": 1.0, "twice the time": 2.0}


_WORKLOADS = {"lfw-affine": "250x250", "imagenet_train": "500x375", "imagenet_eval": "500x375"}
_CONTESTANTS = {
    "gpupipe-cpu": ("gpupipe, `engine: cpu`", ""),
    "gpupipe-cpu-off": ("gpupipe, `engine: cpu` without its extensions", ""),
    "gpupipe-dali": ("gpupipe, `engine: dali` on the CPU", ""),
    "hand-written": ("DALI on the CPU, written by hand", "gpupipe-cpu / hand-written DALI"),
    "opencv": ("OpenCV on threads, written by hand", "gpupipe-cpu / threads with OpenCV"),
    "torchvision": ("torchvision, best DataLoader", "gpupipe-cpu / torchvision"),
    "yardstick": (
        "small C++ kernels without a loader around them",
        "gpupipe-cpu / small C kernels",
    ),
}
"""Each contestant of benchmarks/core.py: its row, and the ratio of `engine: cpu` to it."""
_NOT_IN_BRIEF = ("gpupipe-cpu-off", "yardstick")


def main() -> None:
    for name, table in write_tables().items():
        begin, end = mark(name)
        before, _, rest = TABLES[name].read_text().partition(begin)
        TABLES[name].write_text(f"{before}{begin}{table}{end}{rest.partition(end)[2]}")


def mark(name: str) -> tuple[str, str]:
    """Return the lines of the page before and after a table."""
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"


def write_tables() -> dict[str, str]:
    """Return the tables of the results, by name."""
    results = harness.REPOSITORY / "benchmarks" / "results"
    rates = {
        name: json.loads((results / f"core.{name}.engines.json").read_text())["workloads"][name]
        for name in _WORKLOADS
    }
    steps = json.loads((results / "steps.json").read_text())
    without = json.loads((results / "steps.opencv.json").read_text())
    return {
        "rates in brief": write_rates(rates, in_brief=True),
        "rates": write_rates(rates),
        "steps in brief": write_steps_in_brief(steps, "the time"),
        "steps": write_steps(steps),
        "steps without extensions in brief": write_steps_in_brief(without, "twice the time"),
        "steps without extensions": write_steps(without),
        "steps of arrays": write_sources(json.loads((results / "steps.sources.json").read_text())),
        "lock": write_lock(
            json.loads((results / "gil.json").read_text()),
            json.loads((results / "gil.batch-32.json").read_text()),
        ),
        "comparison": write_comparison(json.loads((results / "compare.json").read_text())),
    }


def write_rates(workloads: dict[str, Any], in_brief: bool = False) -> str:
    """Return the median rate of each contestant; the ratios, too, unless `in_brief`."""
    rows = []
    for name, (title, ratio) in _CONTESTANTS.items():
        if in_brief and name in _NOT_IN_BRIEF:
            continue
        cells = [title]
        for workload in workloads.values():
            key = next(
                key for key in workload["rounds"] if key == name or key.startswith(f"{name}-tensor")
            )
            rates = [round["images_per_second"] for round in workload["rounds"][key]]
            cell = f"{median(rates):,.0f}"
            if ratio and not in_brief:
                ratios = workload["ratios"]
                to_it = ratios[next(key for key in ratios if key.startswith(ratio))]
                cell += f" ({to_it['median']:.2f}, {to_it['min']:.2f} to {to_it['max']:.2f})"
            cells.append(cell)
        rows.append(cells)
    head = [
        f"`{workload['workload']['pipeline']}`, {_WORKLOADS[name]}"
        for name, workload in workloads.items()
    ]
    return _format_table(["images/s", *head], rows)


def write_steps(result: dict[str, Any]) -> str:
    """Return the medians of each step, and gpupipe's ratio to the best of the others."""
    rows = []
    for name, step in result["steps"].items():
        own = next(iter(step["microseconds"]))
        cells = [f"{step['microseconds'].get(c, 0):,.0f}" for c in (own, *_LIBRARIES)]
        shown = [cell if cell != "0" or n == 0 else "" for n, cell in enumerate(cells)]
        rows.append([name, *shown, f"{step['ratio']['median']:z.2f}"])
    head = ["step", "gpupipe", "AlbumentationsX", "Albumentations", "torchvision", "ratio"]
    return _format_table(head, rows)


def write_steps_in_brief(result: dict[str, Any], limit: str) -> str:
    """Return how many cases take at most `limit` of the fastest library, and name the others."""
    cases = result["steps"]
    above = {n: c for n, c in cases.items() if c["ratio"]["median"] > _LIMITS[limit]}
    failed = {n: c for n, c in cases.items() if not c["goal"]["holds"]}
    excused = {n: c for n, c in above.items() if n not in failed}
    text = (
        f"{len(cases) - len(above)} of the {len(cases)} cases take at most {limit} of the fastest "
        "library."
    )
    if excused:
        text += f" Slower, but at most 60 µs: {_list_cases(excused)}."
    if failed:
        text += f" Above the goal: {_list_cases(failed)}."
    return textwrap.fill(text, 100, break_on_hyphens=False) + "\n"


def _list_cases(cases: dict[str, Any]) -> str:
    shown = []
    for name, case in cases.items():
        own = next(iter(case["microseconds"].values()))
        shown.append(f"{name} ({own:,.0f} µs, {case['ratio']['median']:.2f} times)")
    return "; ".join(shown)


def write_sources(result: dict[str, Any]) -> str:
    """Return the medians of each step of decoded images and of arrays, and their ratios."""
    contestants = list(result["versions"])
    titles = [c.removeprefix("gpupipe, ").replace("-", " ") for c in contestants[1:]]
    rows = []
    for name, step in result["steps"].items():
        took, ratios = step["microseconds"], step["ratios"]
        first, *others = contestants
        cells = [f"{took[c]:,.0f} ({ratios[c]:.1f})" if c in took else "" for c in others]
        rows.append([name, f"{took[first]:,.0f}", *cells])
    return _format_table(["step", "decoded images", *titles], rows)


def write_lock(result: dict[str, Any], small: dict[str, Any]) -> str:
    """Return the lock's time of each pipeline beside its goal, and the rates of the model.

    `small` is the result in batches of 32.
    """
    rows = []
    for name, found in result["pipelines"].items():
        in_small = "" if name in _WORKLOADS else _describe_lock(small["pipelines"][name])
        rates = [f"{found['model_rates'][cores]:,.0f}" for cores in _CORES]
        rows.append([f"`{name}`", _describe_lock(found), f"{gil.find_goal(name):g}", in_small])
        rows[-1] += [f"{found['cpu_us']:,.0f}", *rates]
    head = ["pipeline", "lock, µs an image", "goal", "in batches of 32", "CPU, µs an image"]
    return _format_table(head + [f"{cores} cores, images/s" for cores in _CORES], rows)


def _describe_lock(found: dict[str, Any]) -> str:
    return f"{found['lock_us']:.1f} ± {found['lock_error_us']:.1f}"


def write_comparison(result: dict[str, Any]) -> str:
    """Return what `gpupipe compare` prints, from the results.json of its --out."""
    comparison = draw_comparison.read_comparison(result)
    agreements = [
        draw_comparison.build(Agreement, row | {"psnr": row["psnr"] or math.nan})
        for row in result["parity"]
    ]
    engine = registry.get_title(comparison.results[0].contestant.changes["engine"])
    screen = io.StringIO()
    console = Console(file=screen, width=10**5)
    console.print(tables.parity_table(agreements, engine))
    console.print(tables.comparison_table(comparison))
    lines = [*screen.getvalue().splitlines(), *describe_verdict(comparison)]
    return "```\n" + "\n".join(lines) + "\n```\n"


def _format_table(head: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    main()
