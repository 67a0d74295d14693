"""Whether `gpupipe compare` says the same twice: three runs of it, and whether their ratios agree
within the intervals that they state.

    # about 6 minutes, with nothing beside it; writes benchmarks/results/agreement.json
    python benchmarks/agreement.py
    python benchmarks/agreement.py --quick  # a check that it runs

Two ratios agree where their difference is no larger than the intervals of both allow (their half
widths, added in squares, in logarithms).
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import round_statistics

_LIMIT = 300.0
_COMMAND = ["compare", "lfw", "--quick"]


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    os.environ["GPUPIPE_DATA"] = str(arguments.data / "no-lfw")
    arguments.data.mkdir(parents=True, exist_ok=True)
    few = ["--batches", "2", "--repeats", "2"] if arguments.quick else []
    runs = [compared(arguments.data / "compare.json", few) for _ in range(arguments.runs)]
    names = [s["name"] for s in runs[0]["sides"] if s["ratio"]]
    pairs = [
        agreement(name, a, b)
        for name in names
        for a, b in itertools.combinations(enumerate(runs), 2)
    ]
    slowest = max(r["seconds"] for r in runs)
    goals = [
        round_statistics.goal(
            "pairs of ratios that agree", sum(p["agree"] for p in pairs) / len(pairs), 1.0
        )
    ]
    goals.append(round_statistics.goal("seconds of the longest run", slowest, _LIMIT, at_most=True))
    path = harness.write(
        "agreement",
        {
            "command_measured": ["gpupipe", *_COMMAND, *few],
            "runs": runs,
            "pairs": pairs,
            "goals": goals,
        },
        arguments,
    )
    for r in runs:
        print(f"{r['seconds']:.0f} s: " + "; ".join(_said(s, r) for s in r["sides"]))
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.options(__doc__)
    harness.add_number(parser, "--runs", 3, "how often")
    return parser.parse_args()


def compared(file: Path, few: list[str]) -> dict[str, Any]:
    """One run of the command, as a user's: its JSON, and the seconds that it took.

    Raises RuntimeError where it fails.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "gpupipe", *_COMMAND, *few, "--json", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"gpupipe {' '.join(_COMMAND)} failed with status "
            f"{done.returncode}:\n{done.stderr[-3000:]}"
        )
    harness.say(done.stdout)
    found: dict[str, Any] = json.loads(file.read_text())
    return found | {"seconds": time.perf_counter() - started}


def agreement(
    name: str, one: tuple[int, dict[str, Any]], other: tuple[int, dict[str, Any]]
) -> dict[str, Any]:
    """Of the ratios of a side in two runs: how far they are apart, and how far they may be, both as
    factors.
    """
    (a, half_a), (b, half_b) = (_logarithms(name, run) for _, run in (one, other))
    apart, allowed = abs(a - b), math.hypot(half_a, half_b)
    return {
        "side": name,
        "runs": [one[0], other[0]],
        "apart": math.exp(apart),
        "allowed": math.exp(allowed),
        "agree": apart <= allowed,
    }


def _logarithms(name: str, run: dict[str, Any]) -> tuple[float, float]:
    """The ratio of a side and half its interval."""
    ratio = next(s["ratio"] for s in run["sides"] if s["name"] == name)
    return math.log(ratio["value"]), math.log(ratio["high"] / ratio["low"]) / 2


def _said(side: dict[str, Any], run: dict[str, Any]) -> str:
    rate = f"{side['name']} {side['images_per_second']['mean']:,.0f} images/s"
    if not side["ratio"]:
        return rate
    return (
        f"{rate}, {side['ratio']['value']:.2f} times {run['ratios_to']} "
        f"({side['ratio']['low']:.2f} to {side['ratio']['high']:.2f})"
    )


if __name__ == "__main__":
    main()
