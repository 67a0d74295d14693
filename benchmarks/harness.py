"""What the benchmarks share: fresh processes on the same cores, what a pass costs, medians, ratios
of paired rounds, the result file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpupipe.bench.memory import PeakMemory

REPOSITORY = Path(__file__).resolve().parents[1]
_MIB = 2**20
_GIT = (["rev-parse", "HEAD"], ["status", "--short", "--untracked-files=no"])
_QUIET = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


# --- the command line


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
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="interleaved rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help="least seconds of measured passes in a round (default: %(default)s)",
    )
    return parser


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
    from gpupipe.runtime.devices import cores

    return cores()


def passed_on(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Options of this run, for a process of it."""
    shared = ["--data", str(arguments.data), "--cores", ",".join(map(str, arguments.cores))]
    return shared + [part for n in names for part in (f"--{n}", str(getattr(arguments, n)))]


# --- fresh processes


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
            say(
                f"{title}, round {number + 1}/{count}: {name} "
                f"{found[-1]['images_per_second']:,.0f} images/s"
            )
    return results


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- what a pass costs


def nothing() -> None:
    """What there is to wait for at the end of a pass on a CPU."""


def measured(
    build: Callable[[], Iterable[Any]],
    size: Callable[[Any], int],
    seconds: float,
    warm_seconds: float,
    finish: Callable[[], None] = nothing,
) -> dict[str, Any]:
    """Build, warm up, then whole passes for at least `seconds`. `size` counts the images of a
    batch; `finish` waits for the device.

    Seconds of wall time; memory in MiB; others_cores: how many of this process's cores other
    processes kept busy meanwhile (0 on a quiet machine).
    """
    from gpupipe.bench.memory import PeakMemory

    with PeakMemory() as memory:
        started = time.perf_counter()
        batches = build()
        first, warm_passes = _warm(batches, started, warm_seconds, finish)
        cpu, cores_cpu, started = cpu_seconds(), _cores_cpu_seconds(), time.perf_counter()
        passes: list[tuple[int, float]] = []
        while time.perf_counter() - started < seconds:
            passes.append(_one_pass(batches, size, finish))
        wall, cpu, cores_cpu = (
            time.perf_counter() - started,
            cpu_seconds() - cpu,
            _cores_cpu_seconds() - cores_cpu,
        )
    images = sum(n for n, _ in passes)
    return {
        "images_per_second": images / wall,
        "cpu_seconds_per_1000": 1000 * cpu / images,
        "first_batch_seconds": first,
        **peak(memory),
        "others_cores": max(0.0, cores_cpu - cpu) / wall,
        "images": images,
        "seconds": wall,
        "warm_up_passes": warm_passes,
        "passes": [n / s for n, s in passes],
    }


def peak(memory: PeakMemory) -> dict[str, Any]:
    """What `memory` found, for a result."""
    memory.stop()
    return {"peak_memory_mib": memory.bytes / _MIB, "peak_memory_kind": memory.kind}


def _warm(
    batches: Iterable[Any], started: float, least: float, finish: Callable[[], None]
) -> tuple[float, int]:
    """At least one pass, for at least `least` seconds; the seconds from `started` to the first
    batch, and the passes.
    """
    first, passes = 0.0, 0
    while passes == 0 or time.perf_counter() - started < first + least:
        for _ in batches:
            if not first:
                finish()
                first = time.perf_counter() - started
        finish()
        passes += 1
    return first, passes


def _one_pass(
    batches: Iterable[Any], size: Callable[[Any], int], finish: Callable[[], None]
) -> tuple[int, float]:
    images, started = 0, time.perf_counter()
    for batch in batches:
        images += size(batch)
    finish()
    return images, time.perf_counter() - started


def cpu_seconds() -> float:
    """CPU time of this process and of its live and ended children."""
    own, ended = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    live = sum(_ticks(child.pid) for child in multiprocessing.active_children()) / _TICKS
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + live


def _ticks(pid: int | None) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _cores_cpu_seconds() -> float:
    """CPU time that the cores of this process have spent on anything (user, nice, system,
    interrupts, and stolen by the host).
    """
    mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    return (
        sum(sum(map(int, fields[1:4] + fields[6:9])) for fields in lines if fields[0] in mine)
        / _TICKS
    )


# --- what rounds say


def median(results: Iterable[dict[str, Any]], key: str) -> float:
    return statistics.median(r[key] for r in results)


def ratio(
    results: list[dict[str, Any]], to: list[dict[str, Any]], key: str = "images_per_second"
) -> dict[str, Any]:
    """One ratio a round, each of two runs next to each other.

    With n rounds, min to max holds the true median with 1 - 2^(1-n) confidence.
    """
    rounds = [a[key] / b[key] for a, b in zip(results, to, strict=True)]
    confidence = 1 - 2.0 ** (1 - len(rounds))
    return {
        "median": statistics.median(rounds),
        "min": min(rounds),
        "max": max(rounds),
        "confidence": confidence,
        "rounds": rounds,
    }


def disturbed(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Whose runs had to share the cores with other processes."""
    return [
        name for name, found in results.items() if max(r["others_cores"] for r in found) > _QUIET
    ]


def goal(what: str, value: float, bound: float, at_most: bool = False) -> dict[str, Any]:
    """A figure against what it should be."""
    return {
        "goal": what,
        "value": value,
        "bound": bound,
        "at_most": at_most,
        "holds": value <= bound if at_most else value >= bound,
    }


def print_goals(goals: list[dict[str, Any]]) -> None:
    for g in goals:
        print(
            f"  {'holds ' if g['holds'] else 'FAILS '} {g['goal']}: {g['value']:.4g} (goal "
            f"{'<=' if g['at_most'] else '>='} {g['bound']:g})"
        )


_COLUMNS = (
    ("images/s", "images_per_second", ",.0f"),
    ("CPU s/1000", "cpu_seconds_per_1000", ".3f"),
    ("first batch s", "first_batch_seconds", ".2f"),
    ("peak MiB", "peak_memory_mib", ",.0f"),
    ("GPU MiB", "peak_gpu_mib", ",.0f"),
    ("others' cores", "others_cores", ".2f"),
)


def print_table(results: dict[str, list[dict[str, Any]]]) -> None:
    """Medians, and the range of the rates, of every contestant."""
    columns = [c for c in _COLUMNS if all(c[1] in r for found in results.values() for r in found)]
    print(
        f"  {'':28}"
        + "".join(f"{title:>15}" for title, _, _ in columns)
        + "   images/s, min to max"
    )
    for name, found in results.items():
        rates = [r["images_per_second"] for r in found]
        cells = "".join(f"{median(found, key):>15{style}}" for _, key, style in columns)
        print(f"  {name:28}{cells}   {min(rates):,.0f} to {max(rates):,.0f}")
    if disturbed(results):
        print(
            f"  DISTURBED: other processes kept more than {_QUIET} cores busy in some runs; "
            "measure again with nothing beside it"
        )


def print_ratio(name: str, found: dict[str, Any]) -> None:
    print(
        f"  {name}: median {found['median']:.3f}, {found['min']:.3f} to {found['max']:.3f} "
        f"over {len(found['rounds'])} rounds"
    )


# --- the result file


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
