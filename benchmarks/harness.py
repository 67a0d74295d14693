"""What the benchmarks share: options, fresh processes on the same cores, the result file."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
_GIT = (["rev-parse", "HEAD"], ["status", "--short", "--untracked-files=no"])


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "gpbench",
        help="folder for made data and caches (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the JSON result (default: benchmarks/results; with --quick a folder "
        "under --data)",
    )
    parser.add_argument(
        "--cores",
        type=_cores,
        default=sorted(os.sched_getaffinity(0)),
        help="cores to run on, 0,1,2 or 0-15 (default: all allowed)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small counts and one round: a check that it runs, not a measurement",
    )
    return parser


def contest(description: str | None, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """Those, and the options of benchmarks whose contestants take turns, with their defaults."""
    parser = options(description)
    add_number(parser, "--rounds", rounds, "interleaved rounds")
    add_number(parser, "--seconds", seconds, "least seconds of measured passes in a round")
    return parser


def add_number(
    parser: argparse.ArgumentParser, option: str, default: float, description: str
) -> None:
    """An option that is a number, of the type of its default."""
    text = f"{description} (default: %(default)s)"
    parser.add_argument(option, type=type(default), default=default, help=text)


def add_selection(parser: argparse.ArgumentParser, workloads: Iterable[str]) -> None:
    """The options --only and --one, of benchmarks whose workloads are measured one by one."""
    parser.add_argument("--only", choices=sorted(workloads), help="one workload")
    parser.add_argument(
        "--one",
        nargs=2,
        metavar=("CONTESTANT", "WORKLOAD"),
        help="run one contestant here, and print one line of JSON",
    )


def parsed(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """What the command line says.

    quick: what else is less with --quick, beside rounds and seconds.
    """
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update({"rounds": 1, "seconds": 1.0, **quick})
    return arguments


def _cores(text: str) -> list[int]:
    ends = [[int(n) for n in part.split("-")] for part in text.split(",")]
    return [core for e in ends for core in range(e[0], e[-1] + 1)]


def prepare(arguments: argparse.Namespace) -> None:
    """Pin this process, and those that it starts, to the cores, and keep gpupipe's caches with the
    made data.
    """
    os.sched_setaffinity(0, arguments.cores)
    os.environ["GPUPIPE_CACHE"] = str(arguments.data / "cache")


def threads() -> int:
    """The threads that a loader gets: the cores, or the quota of the control group where that is
    less; gpupipe takes as many.
    """
    from gpupipe.runtime.ranks import cores

    return cores()


def passed_on(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Options of this run, for a process of it."""
    shared = ["--data", str(arguments.data), "--cores", ",".join(map(str, arguments.cores))]
    options = ((f"--{name.replace('_', '-')}", str(getattr(arguments, name))) for name in names)
    return shared + [part for option in options for part in option]


def fresh(script: str, *arguments: str, limit: float = 900.0) -> dict[str, Any]:
    """The JSON in the last line that a new process of a benchmark prints. Raises RuntimeError with
    what it said where it fails.

    limit: seconds after which it is ended.
    """
    what = f"{Path(script).name} {' '.join(arguments)}"
    try:
        done = subprocess.run(
            [sys.executable, script, *arguments],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as e:
        raise RuntimeError(f"{what} was not done after {limit:g} s") from e
    if done.returncode:
        raise RuntimeError(f"{what} failed with status {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def fresh_lines(script: str, *arguments: str, limit: float) -> tuple[list[dict[str, Any]], str]:
    """The JSON of each line that a new process of a benchmark prints, and why it ended early, or
    "".

    What it printed before it failed, or was ended after `limit` seconds, counts.
    """
    command = [sys.executable, script, *arguments]
    why = ""
    try:
        done = subprocess.run(
            command, capture_output=True, cwd=REPOSITORY, check=False, timeout=limit
        )
        printed = done.stdout
        if done.returncode:
            why = (
                f"ended with status {done.returncode}: "
                f"{done.stderr[-1000:].decode(errors='replace')}"
            )
    except subprocess.TimeoutExpired as e:
        printed, why = e.stdout or b"", f"was not done after {limit:g} s"
    whole_lines = printed.decode(errors="replace").split("\n")[:-1]
    return [json.loads(line) for line in whole_lines if line.startswith("{")], why


def interleaved(
    run: Callable[[str], dict[str, Any]], contestants: Iterable[str], count: int, title: str
) -> dict[str, list[dict[str, Any]]]:
    """`count` rounds of all contestants in turn (A B C, A B C, ...), so that what drifts on the
    machine meets all of them.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for number in range(count):
        for name, found in results.items():
            found.append(run(name))
            rate = found[-1].get("images_per_second")
            shown = "" if rate is None else f" {rate:,.0f} images/s"
            say(f"{title}, round {number + 1}/{count}: {name}{shown}")
    return results


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(name: str, result: dict[str, Any], arguments: argparse.Namespace) -> Path:
    """RESULT as OUT/NAME.json, with the machine, the commit and the command."""
    from gpupipe.bench.machine import machine

    folder = arguments.out or (
        arguments.data / "quick-results"
        if arguments.quick
        else REPOSITORY / "benchmarks" / "results"
    )
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "benchmark": name,
        "quick": arguments.quick,
        "command": sys.argv,
        "cores": arguments.cores,
        "load_average": os.getloadavg(),
    }
    text = json.dumps(head | {"machine": machine(), "commit": _commit()} | result, indent=1)
    path = folder / f"{name}.json"
    path.write_text(text + "\n")
    return path


def _commit() -> str | None:
    """The checkout's commit, with "+changes" where files differ from it; None outside a
    checkout.
    """
    try:
        head, changes = (
            subprocess.run(
                ["git", *a], capture_output=True, text=True, cwd=REPOSITORY, check=True
            ).stdout.strip()
            for a in _GIT
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changes else "")
