"""A crop, a flip, a color_jitter and normalize from JPEGs: gpupipe against AlbumentationsX and
Albumentations, each in its best DataLoader.

    # environments as for steps.py, in which torch is installed too; writes
    # benchmarks/results/step_recipe.json
    python benchmarks/step_recipe.py --albumentationsx ENVX --albumentations ENV2
    # in two shorter parts: the first finds the worker counts
    python benchmarks/step_recipe.py --albumentationsx ENVX --albumentations ENV2 --rounds 0
    python benchmarks/step_recipe.py --albumentationsx ENVX --albumentations ENV2 --workers 2
    python benchmarks/step_recipe.py --quick  # a check that it runs

Answers: images a second, medians of interleaved rounds in fresh processes, and their ratio round by
round. Images are 1,000 JPEGs of 500x375, in batches of 128. The other libraries decode with OpenCV
in a DataLoader, at the worker count that a preliminary run finds best.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import harness
import photos
import round_statistics

_GOAL = 2.0
_LIBRARIES = ("albumentationsx", "albumentations")
_FOLDER = Path(__file__).parent
_JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
_PIPELINE: list[Any] = [
    "decode",
    {"random_resized_crop": {"size": 224}},
    "random_horizontal_flip",
    {"color_jitter": _JITTER},
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]
_WARM_SECONDS, _PRELIMINARY_SECONDS = 2.0, 4.0


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    root = photos.imagenet_like(arguments.data, arguments.images)
    if arguments.one:
        print(json.dumps(_measure_own(root, arguments.seconds)))
        return
    run = partial(_run, root, arguments)
    libraries = [name for name in _LIBRARIES if getattr(arguments, name)]
    best = {name: _find_workers(name, run, arguments) for name in libraries}
    if not arguments.rounds:
        return
    contestants = ["gpupipe", *(f"{name}-{workers}" for name, workers in best.items())]
    rounds = harness.interleaved(
        lambda name: run(name, arguments.seconds), contestants, arguments.rounds, "recipe"
    )
    own = rounds["gpupipe"]
    ratios = {name: round_statistics.ratio(own, rounds[name]) for name in contestants[1:]}
    goals = [
        round_statistics.goal(f"gpupipe / {name}", ratio["median"], _GOAL)
        for name, ratio in ratios.items()
    ]
    result = {"pipeline": _PIPELINE, "rounds": rounds, "ratios": ratios, "goals": goals}
    path = harness.write("step_recipe", result, arguments)
    for name, found in rounds.items():
        print(f"{name}: {round_statistics.median(found, 'images_per_second'):,.0f} images/s")
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=4.0)
    parser.add_argument("--images", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--one", action="store_true", help="gpupipe here; print a line of JSON")
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        help="worker counts to choose from (default: half of the cores to twice as many)",
    )
    for library in _LIBRARIES:
        parser.add_argument(f"--{library}", type=Path, help=f"an environment with {library}")
    return harness.parsed(parser, images=300)


def _find_workers(library: str, run: Any, arguments: argparse.Namespace) -> int:
    """Return the number of workers with which a library is fastest."""
    cores = harness.threads()
    counts = arguments.workers or sorted({max(1, cores // 2), cores, cores + 1, 2 * cores})
    if len(counts) == 1:
        return int(counts[0])
    seconds = min(arguments.seconds, _PRELIMINARY_SECONDS)
    rates = {n: run(f"{library}-{n}", seconds)["images_per_second"] for n in counts}
    harness.say(f"{library}: images a second by workers: {rates}")
    return max(rates, key=lambda n: rates[n])


def _run(root: Path, arguments: argparse.Namespace, contestant: str, seconds: float) -> Any:
    if contestant == "gpupipe":
        size = ["--seconds", str(seconds), *harness.passed_on(arguments, "images")]
        return harness.fresh(__file__, "--one", *size)
    library, workers = contestant.split("-")
    python = str(getattr(arguments, library) / "bin" / "python")
    script = str(_FOLDER / "step_dataloader.py")
    done = subprocess.run(
        [python, script, library, str(root), workers, str(seconds)],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def _measure_own(root: Path, seconds: float) -> dict[str, Any]:
    import measuring

    import gpupipe.loader

    data = {"source": "folder", "root": str(root)}
    options: dict[str, Any] = {"engine": "cpu", "device": "cpu", "batch_size": 128}

    def build() -> Any:
        return gpupipe.load({"data": data, "pipeline": _PIPELINE}, **options)

    return measuring.measure(build, lambda b: len(b["label"]), seconds, _WARM_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
