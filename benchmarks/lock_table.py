"""Writes the table of the interpreter's lock into docs/performance.md, from
benchmarks/results/gil.json.

python benchmarks/lock_table.py
"""

from __future__ import annotations

import json
from typing import Any

import gil
import harness

PAGE = harness.REPOSITORY / "docs" / "performance.md"
RESULT = harness.REPOSITORY / "benchmarks" / "results" / "gil.json"
BEGIN, END = "<!-- lock -->\n", "<!-- end of lock -->\n"
_CORES = ("8", "32", "96")


def main() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{write_table(json.loads(RESULT.read_text()))}{END}{after}")


def write_table(result: dict[str, Any]) -> str:
    """Return the lock's time of each pipeline beside its goal, and the rates of the model."""
    lines = [
        "| pipeline | lock, µs an image | goal | CPU, µs an image | "
        + " | ".join(f"{cores} cores, images/s" for cores in _CORES)
        + " |",
        "| --- |" + " --- |" * (3 + len(_CORES)),
    ]
    for name, found in result["pipelines"].items():
        lock = f"{found['lock_us']:.1f} ± {found['lock_error_us']:.1f}"
        rates = [f"{found['model_rates'][cores]:,.0f}" for cores in _CORES]
        cells = [f"`{name}`", lock, f"{gil.find_goal(name):g}", f"{found['cpu_us']:,.0f}", *rates]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
