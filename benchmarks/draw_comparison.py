"""The plots of a comparison that was measured before, drawn again.

    # benchmarks/results/compare.json to docs/images/compare-time.png
    python benchmarks/draw_comparison.py
    python benchmarks/draw_comparison.py report/results.json --out FOLDER

`gpupipe compare --out` draws them when it has measured. This draws results.json again, with the
lettering of today. The caption names the machine that measured.
"""

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from gpupipe.bench import plots
from gpupipe.bench.comparison import Comparison, Contestant, Result
from gpupipe.bench.contestant import Contest, ContestOutcome

_REPOSITORY = Path(__file__).parents[1]
_RENAMED = {"crew": "parallelism_with_unit", "most": "max", "largest": "limits_max"}
"""Fields of earlier versions."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = _REPOSITORY / "benchmarks" / "results" / "compare.json"
    parser.add_argument("results", type=Path, nargs="?", default=default)
    parser.add_argument("--out", type=Path, help="folder for all plots (default: docs/images)")
    arguments = parser.parse_args()
    content = json.loads(arguments.results.read_text())
    plots.machine = lambda: content["machine"]
    comparison = read_comparison(content)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        plots.save(comparison, arguments.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        plots.save(comparison, Path(folder))
        target = _REPOSITORY / "docs" / "images" / "compare-time.png"
        target.write_bytes((Path(folder) / "time.png").read_bytes())


def read_comparison(content: dict[str, Any]) -> Comparison:
    """The comparison that Comparison.as_json() was written from."""
    results = [
        Result(
            Contestant(side["name"], side["changes"], side["workers"]),
            [build(ContestOutcome, outcome) for outcome in side["rounds"]],
        )
        for side in content["sides"]
    ]
    return Comparison(
        results=results,
        contest=build(Contest, content["contest"]),
        repeats=content["repeats"],
        notes=content["notes"],
        command=content["command"],
        interrupted=content["interrupted"],
    )


def build(kind: Any, values: dict[str, Any]) -> Any:
    """Return an object of a dataclass, from its fields in a file of results."""
    renamed = {_RENAMED.get(name, name): value for name, value in values.items()}
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in renamed.items() if name in names})


if __name__ == "__main__":
    main()
