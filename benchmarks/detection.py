"""SSD300 on a CPU: the shipped recipe `ssd` against torchvision's references/detection, and against
DALI written by hand, on the same cores.

    # about 4 minutes, with nothing beside it; writes benchmarks/results/detection.json
    python benchmarks/detection.py --cores 0,1
    python benchmarks/detection.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/detection.py --one gpupipe
    python benchmarks/detection.py --one torchvision-tensor-2

Photographs of 640x480 with about 8 drawn boxes each. The DataLoader runs at the worker count and
with the decoder that a preliminary run finds best. Contestants take turns, in fresh processes;
ratios are taken round by round. It also measures the code that moves annotations: the CPU time of
one thread for an image, in batches of 32. Needs pycocotools, which torchvision's data set reads the
file with.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import detection_data
import harness
import measuring
import numpy as np
import round_statistics

_BATCH_SIZE = 32
_GOALS = {"torchvision": 5.0, "dali": 3.0}
_ANNOTATIONS_GOAL = 60.0
_PRELIMINARY_SECONDS, _WARM_SECONDS = 4.0, 1.0
_RECIPES = ("ssd", "ssdlite", "multiscale")
_EPOCHS = 12
_HEIGHT_WIDTH = (480.0, 640.0)


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    detection_data.coco_like(arguments.data, arguments.images)
    result = compare(arguments)
    path = harness.write("detection", result, arguments)
    round_statistics.print_table(result["rounds"])
    for name, ratio in result["ratios"].items():
        round_statistics.print_ratio(f"gpupipe / {name}", ratio)
    for recipe, cost in result["annotations"].items():
        print(f"  annotations of {recipe}: {cost['median']:.1f} us an image")
    round_statistics.print_goals(result["goals"])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=5.0)
    harness.add_number(parser, "--images", 400, "photographs")
    parser.add_argument(
        "--one", metavar="CONTESTANT", help="run one contestant here, and print one line of JSON"
    )
    return harness.parsed(parser, images=64)


# --- one contestant, in a process of its own


def one(contestant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a contestant does: what measuring.measure returns; or the costs of annotations."""
    root, file = detection_data.coco_like(arguments.data, arguments.images)
    kind, *how = contestant.split("-")
    if kind == "annotations":
        return {recipe: measure_annotations(recipe, root, file) for recipe in _RECIPES}
    if kind == "gpupipe":
        import gpupipe.engines.registry

        gpupipe.engines.registry.find("cpu")  # before the clock starts
        return _measure(lambda: _load("ssd", root, file), lambda batch: len(batch[0]), arguments)
    import detection_baselines

    if kind == "dali":
        import nvidia.dali.plugin.pytorch  # noqa: F401  # before the clock starts

        return _measure(
            lambda: detection_baselines.dali_batches(root, file, _BATCH_SIZE, harness.threads()),
            lambda batch: len(batch[0]["image"]),
            arguments,
        )
    return _measure(
        lambda: detection_baselines.torchvision_batches(
            root, file, how[0], int(how[1]), _BATCH_SIZE
        ),
        lambda batch: len(batch[0]),
        arguments,
    )


def _measure(build: Any, size: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    return measuring.measure(build, size, arguments.seconds, _WARM_SECONDS)


def _load(recipe: str, root: Path, file: Path) -> Any:
    import gpupipe.loader

    return gpupipe.load(
        recipe,
        engine="cpu",
        batch_size=_BATCH_SIZE,
        device="cpu",
        data={"source": "coco", "root": str(root), "annotations": str(file)},
    )


def measure_annotations(recipe: str, root: Path, file: Path) -> dict[str, float]:
    """Return microseconds of CPU time an image: draws, and all that moves boxes and their rows."""
    from gpupipe.sampling.sampler import Plan

    with _load(recipe, root, file) as loader:
        job, count = loader.engine._job, len(loader.index)
        sizes = {"image": np.full((_BATCH_SIZE, 2), _HEIGHT_WIDTH)}
        plans = [
            Plan(epoch, np.arange(first, first + _BATCH_SIZE), 1, True)
            for epoch in range(_EPOCHS)
            for first in range(0, count - _BATCH_SIZE + 1, _BATCH_SIZE)
        ]
        for plan in plans[:8]:
            job.annotate(plan, sizes)
        costs = []
        for plan in plans:
            started = time.thread_time()
            job.annotate(plan, sizes)
            costs.append(1e6 * (time.thread_time() - started) / _BATCH_SIZE)
        boxes = len(loader.index.annotations["boxes"].values) / count
    return {
        "median": statistics.median(costs),
        "min": min(costs),
        "max": max(costs),
        "batches": len(costs),
        "boxes_per_image": boxes,
    }


# --- all of them, compared


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The rounds of all contestants, the cost of annotations, and what they say."""

    def run(contestant: str, seconds: float = arguments.seconds) -> dict[str, Any]:
        size = ["--seconds", str(seconds)]
        options = harness.passed_on(arguments, "images")
        return harness.fresh(__file__, "--one", contestant, *size, *options)

    short = min(arguments.seconds, _PRELIMINARY_SECONDS)
    preliminary = {name: run(name, short) for name in _data_loaders()}
    best = max(preliminary, key=lambda name: preliminary[name]["images_per_second"])
    harness.say(f"the best DataLoader is {best}")
    rounds = harness.interleaved(run, ["gpupipe", best, "dali"], arguments.rounds, "ssd")
    ratios = {
        name: round_statistics.ratio(rounds["gpupipe"], rounds[name]) for name in (best, "dali")
    }
    annotations = run("annotations")
    goals = [
        round_statistics.goal(f"gpupipe / {name}", ratio["median"], _GOALS[name.split("-")[0]])
        for name, ratio in ratios.items()
    ]
    goals += [
        round_statistics.goal(
            f"us an image for the annotations of {recipe}",
            cost["median"],
            _ANNOTATIONS_GOAL,
            at_most=True,
        )
        for recipe, cost in annotations.items()
    ]
    return {
        "disturbed": round_statistics.disturbed({c: [r] for c, r in preliminary.items()} | rounds),
        "preliminary": preliminary,
        "rounds": rounds,
        "ratios": ratios,
        "annotations": annotations,
        "goals": goals,
    }


def _data_loaders() -> list[str]:
    """The DataLoaders to try, with half as many workers as cores to one more than cores."""
    cores = harness.threads()
    workers = sorted({max(1, cores // 2), cores, cores + 1})
    return [f"torchvision-{decoder}-{n}" for decoder in ("tensor", "pil") for n in workers]


if __name__ == "__main__":
    main()
