"""The start of a command: how long `gpupipe --help` takes in a fresh process, and what it imports.

    python benchmarks/startup.py  # writes benchmarks/results/startup.json
    python benchmarks/startup.py --quick  # a check that it runs

Answers: seconds of wall clock of `gpupipe --help`, of `gpupipe --version`, of what a shell calls
for each completion, and of Python alone, as medians of interleaved rounds; and how many modules
`gpupipe --help` imports. Bytecode and files are in the kernel's cache. tests/test_public.py asserts
that no heavy library is among the modules.
"""

import os
import statistics
import subprocess
import sys
import time
from typing import Any

import harness
import round_statistics

_GOAL = 0.2
_ENTRY = "from gpupipe.cli.app import main; main()"
_COMPLETION = {
    "_GPUPIPE_COMPLETE": "bash_complete",
    "COMP_WORDS": "gpupipe run lfw device=",
    "COMP_CWORD": "3",
}
_CASES: dict[str, tuple[list[str], dict[str, str]]] = {
    "python": (["-c", "pass"], {}),
    "help": (["-c", _ENTRY, "--help"], {}),
    "version": (["-c", _ENTRY, "--version"], {}),
    "completion": (
        ["-c", "import sys; sys.argv[0] = 'gpupipe'; " + _ENTRY],
        _COMPLETION,
    ),
}


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=21, help="interleaved rounds (default: %(default)s)"
    )
    arguments = harness.parsed(parser, rounds=3)
    harness.prepare(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in _CASES}
    for number in range(arguments.rounds + 1):
        for name, (words, environment) in _CASES.items():
            taken = _run(words, environment)
            if number:  # the first fills the caches
                seconds[name].append(taken)
    result: dict[str, Any] = {
        name: {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds)}
        for name, rounds in seconds.items()
    }
    median = result["help"]["median"]
    goals = [round_statistics.goal("seconds of gpupipe --help", median, _GOAL, at_most=True)]
    out = {"seconds": result, "rounds": seconds, "modules": _count_modules(), "goals": goals}
    path = harness.write("startup", out, arguments)
    for name, found in result.items():
        print(f"  {name:12} {found['median']:.3f} s ({found['min']:.3f} to {found['max']:.3f})")
    print(f"  modules that --help imports: {out['modules']}")
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _run(words: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *words],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def _count_modules() -> int:
    code = (
        "import sys; from gpupipe.cli.app import main; main(['--help'], standalone_mode=False); "
        "print(len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stderr)


if __name__ == "__main__":
    main()
