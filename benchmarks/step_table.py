"""Writes the table of steps into docs/performance.md, from benchmarks/results/steps.json.

python benchmarks/step_table.py
"""

from __future__ import annotations

import json
from typing import Any

import harness

PAGE = harness.REPOSITORY / "docs" / "performance.md"
RESULT = harness.REPOSITORY / "benchmarks" / "results" / "steps.json"
BEGIN, END = "<!-- steps -->\n", "<!-- end of steps -->\n"
_LIBRARIES = ("albumentationsx", "albumentations", "torchvision")


def main() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{write_table(json.loads(RESULT.read_text()))}{END}{after}")


def write_table(result: dict[str, Any]) -> str:
    """Return the medians of each step, and gpupipe's ratio to the best of the others."""
    lines = [
        "| step | gpupipe | AlbumentationsX | Albumentations | torchvision | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, step in result["steps"].items():
        cells = [f"{step['microseconds'].get(c, 0):,.0f}" for c in ("gpupipe", *_LIBRARIES)]
        shown = [cell if cell != "0" or n == 0 else "" for n, cell in enumerate(cells)]
        lines.append(f"| {name} | {' | '.join(shown)} | {step['ratio']['median']:z.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
