"""Writes the tables of steps and of the interpreter's lock into docs/performance.md, from the
results in benchmarks/results.

python benchmarks/performance_tables.py
"""

from __future__ import annotations

import json
from typing import Any

import gil
import harness

PAGE = harness.REPOSITORY / "docs" / "performance.md"
_LIBRARIES = ("albumentationsx", "albumentations", "torchvision")
_CORES = ("8", "32", "96")


def main() -> None:
    text = PAGE.read_text()
    for name, table in write_tables().items():
        begin, end = mark(name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    PAGE.write_text(text)


def mark(name: str) -> tuple[str, str]:
    """Return the lines of the page before and after a table."""
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"


def write_tables() -> dict[str, str]:
    """Return the tables of the results, by name."""
    results = harness.REPOSITORY / "benchmarks" / "results"
    return {
        "steps": write_steps(json.loads((results / "steps.json").read_text())),
        "lock": write_lock(json.loads((results / "gil.json").read_text())),
    }


def write_steps(result: dict[str, Any]) -> str:
    """Return the medians of each step, and gpupipe's ratio to the best of the others."""
    rows = []
    for name, step in result["steps"].items():
        cells = [f"{step['microseconds'].get(c, 0):,.0f}" for c in ("gpupipe", *_LIBRARIES)]
        shown = [cell if cell != "0" or n == 0 else "" for n, cell in enumerate(cells)]
        rows.append([name, *shown, f"{step['ratio']['median']:z.2f}"])
    head = ["step", "gpupipe", "AlbumentationsX", "Albumentations", "torchvision", "ratio"]
    return _format_table(head, rows)


def write_lock(result: dict[str, Any]) -> str:
    """Return the lock's time of each pipeline beside its goal, and the rates of the model."""
    rows = []
    for name, found in result["pipelines"].items():
        lock = f"{found['lock_us']:.1f} ± {found['lock_error_us']:.1f}"
        rates = [f"{found['model_rates'][cores]:,.0f}" for cores in _CORES]
        rows.append([f"`{name}`", lock, f"{gil.find_goal(name):g}", f"{found['cpu_us']:,.0f}"])
        rows[-1] += rates
    head = ["pipeline", "lock, µs an image", "goal", "CPU, µs an image"]
    return _format_table(head + [f"{cores} cores, images/s" for cores in _CORES], rows)


def _format_table(head: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    main()
