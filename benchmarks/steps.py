"""Each step that changes pixels, on one core: gpupipe against AlbumentationsX, Albumentations and
torchvision.

    # environments of the other libraries, which cannot be installed side by side
    python -m venv ENVX && ENVX/bin/pip install torch albumentationsx==2.5.1 opencv-python-headless
    python -m venv ENV2 && ENV2/bin/pip install albumentations==2.0.8 opencv-python-headless

    # 7 minutes, with nothing beside it; writes benchmarks/results/steps.json
    python benchmarks/steps.py --albumentationsx ENVX --albumentations ENV2
    python benchmarks/steps.py --only hue --only "pad 10" --rounds 5   # writes steps.only.json
    python benchmarks/steps.py --without-extensions   # OpenCV alone; writes steps.opencv.json
    python benchmarks/steps.py --sources images uint8-HWC-3 float32-CHW-3  # steps.sources.json
    python benchmarks/steps.py --quick  # a check that it runs

Answers: microseconds of CPU time an image, medians of rounds. In a round the contestants take turns
at each step, in processes that are pinned to one core and stay for all rounds. Images are 64
photographs of 512x512 in uint8.

- gpupipe: the marginal cost of the step in a loader with `threads: 1`: CPU time of a loader with
  the step, less that of a loader without it. The latter delivers images of the size of the step's
  result, so delivery costs the same. Images come decoded from the decoded cache. A step that makes
  several images is in a view of as many fields, and so is its baseline. A step that may make images
  of different sizes is followed by a crop to the size that all of them have.
- the others: a call of the transform on an image in memory, whose result is made contiguous, as
  github.com/albumentations-team/benchmark measures it. Where a library has several transforms for
  a step, the fastest counts. Images are NumPy arrays (H, W, C) for Albumentations, which uses
  OpenCV, and tensors (C, H, W) for torchvision. A result of another dtype is also copied into a
  batch, and the time of copying the image is taken off: a loader with such a step delivers more
  bytes than one without it. "calls" in the JSON are the calls alone.

With --sources, the figures are the CPU time of whole loaders, and ratios are to the first source.

A contestant without an environment is left out. A ratio is taken round by round, to the best of the
others in that round. step_cases.LEFT_OUT says which steps have no case, and why. Less than 60
microseconds is always enough: so much takes a copy.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import harness
import round_statistics
import step_loaders
from step_cases import CASES

OWN, OWN_WITHOUT = "gpupipe", "gpupipe without extensions"
_ENOUGH = 60.0
"""Microseconds."""
_WITHOUT_BOUND = 2.0
"""The largest ratio without extensions."""
_MEMORY = Path("/dev/shm/gpupipe-steps")
"""Not the folder of the user's own caches."""
_FOLDER = Path(__file__).parent
_Rounds = dict[str, dict[str, list[float]]]
"""Microseconds of each round, by step and contestant."""


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    os.environ["GPUPIPE_SHM"] = str(_MEMORY)
    _MEMORY.mkdir(exist_ok=True)
    names = arguments.only or list(CASES)
    try:
        with ExitStack() as stack:
            workers = {n: stack.enter_context(w) for n, w in _create_workers(arguments).items()}
            rounds, calls = _run_rounds(names, workers, arguments)
    finally:
        shutil.rmtree(_MEMORY)
    steps = {name: summarize(name, found) for name, found in rounds.items()}
    for name, found in calls.items():
        steps[name]["calls"] = {library: median(took) for library, took in found.items()}
    versions = {name: worker.versions for name, worker in workers.items()}
    out = ".".join(filter(None, ["steps", _describe_run(arguments)]))
    path = harness.write(out, {"versions": versions, "steps": steps}, arguments)
    print_table(steps)
    round_statistics.print_goals([s["goal"] for s in steps.values() if "goal" in s])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=0.15)
    parser.add_argument(
        "--only", action="append", choices=list(CASES), help="a step; may be given several times"
    )
    for library in ("albumentationsx", "albumentations"):
        parser.add_argument(f"--{library}", type=Path, help=f"an environment with {library}")
    parser.add_argument(
        "--without-extensions", action="store_true", help="measure GPUPIPE_KERNELS=off"
    )
    parser.add_argument(
        "--sources",
        nargs="+",
        default=["images"],
        help="what gpupipe reads: images, or arrays such as uint8-HWC-3",
    )
    parsed = harness.parsed(parser)
    if parsed.quick:
        parsed.seconds = 0.01
    return parsed


def _describe_run(arguments: argparse.Namespace) -> str:
    if arguments.without_extensions:
        return "opencv"
    if arguments.sources != ["images"]:
        return "sources"
    return "only" if arguments.only else ""


class _Worker:
    """A contestant's process, pinned to one core."""

    def __init__(self, command: list[str], core: int, **variables: str) -> None:
        self._process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
        )
        self.versions: dict[str, str] = self.ask({})

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """Send a task, and return the answer. Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended at {task}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


def _create_workers(arguments: argparse.Namespace) -> dict[str, _Worker]:
    core, folder = arguments.cores[-1], str(arguments.data)
    photographs = str(step_loaders.write_pixels(arguments.data))
    loaders, libraries = str(_FOLDER / "step_loaders.py"), str(_FOLDER / "step_workers.py")
    variables = {"GPUPIPE_KERNELS": "off"} if arguments.without_extensions else {}
    workers = {}
    for source in arguments.sources:
        name = OWN_WITHOUT if arguments.without_extensions else OWN
        title = name if source == "images" else f"{name}, {source}"
        workers[title] = _Worker([sys.executable, loaders, folder, source], core, **variables)
    if arguments.sources != ["images"]:
        return workers
    for library in ("albumentationsx", "albumentations"):
        if environment := getattr(arguments, library):
            python = str(environment / "bin" / "python")
            workers[library] = _Worker([python, libraries, library, photographs], core)
    workers["torchvision"] = _Worker([sys.executable, libraries, "torchvision", photographs], core)
    return workers


def _run_rounds(
    names: list[str], workers: dict[str, _Worker], arguments: argparse.Namespace
) -> tuple[_Rounds, _Rounds]:
    """Return the microseconds of each round, by step and contestant; and those of the call alone,
    of the steps that change the dtype.
    """
    rounds: _Rounds = {name: {} for name in names}
    calls: _Rounds = {}
    key = "microseconds" if arguments.sources == ["images"] else "with"
    for number in range(arguments.rounds):
        for name in names:
            for contestant, worker in workers.items():
                answer = worker.ask({"step": name, "seconds": arguments.seconds})
                if answer:
                    rounds[name].setdefault(contestant, []).append(answer[key])
                if "call" in answer:
                    alone = calls.setdefault(name, {}).setdefault(contestant, [])
                    alone.append(answer["call"])
            found = ", ".join(f"{c} {took[-1]:,.0f}" for c, took in rounds[name].items())
            harness.say(f"round {number + 1}/{arguments.rounds}, {name}: {found}")
    return rounds, calls


def summarize(name: str, rounds: dict[str, list[float]]) -> dict[str, Any]:
    """Return the medians of a step's rounds, and gpupipe's ratio to the best of the others."""
    medians = {contestant: median(took) for contestant, took in rounds.items()}
    own, others = next(iter(medians)), [c for c in medians if not c.startswith(OWN)]
    case = CASES[name]
    steps = {"step": case.step} | ({"then": case.then} if case.then else {})
    result: dict[str, Any] = {**steps, "microseconds": medians, "rounds": rounds}
    if not others:
        return result | {"ratios": {c: _find_ratio(rounds[c], rounds[own]) for c in rounds}}
    best = min(others, key=lambda contestant: medians[contestant])
    pairs = zip(rounds[own], *(rounds[other] for other in others), strict=True)
    ratios = [mine / min(theirs) for mine, *theirs in pairs]
    bound = _WITHOUT_BOUND if own == OWN_WITHOUT else case.bound
    enough = medians[own] <= _ENOUGH
    goal = round_statistics.goal(f"{name}, of {best}", median(ratios), bound, at_most=True)
    return result | {
        "best": best,
        "ratio": {"median": median(ratios), "min": min(ratios), "max": max(ratios)},
        "goal": goal | {"holds": goal["holds"] or enough},
    }


def _find_ratio(took: list[float], to: list[float]) -> float:
    return median(a / b for a, b in zip(took, to, strict=True))


def print_table(steps: dict[str, dict[str, Any]]) -> None:
    """Print the medians, and the ratio to the best of the others."""
    contestants = list(dict.fromkeys(c for s in steps.values() for c in s["microseconds"]))
    print(f"{'microseconds an image':28}" + "".join(f"{c:>28}" for c in contestants) + "   ratio")
    for name, step in steps.items():
        cells = [step["microseconds"].get(c) for c in contestants]
        shown = "".join(f"{'-' if cell is None else f'{cell:,.0f}':>28}" for cell in cells)
        print(
            f"{name:28}{shown}" + (f"   {step['ratio']['median']:.2f}" if "ratio" in step else "")
        )


if __name__ == "__main__":
    main()
