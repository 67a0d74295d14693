"""CPU throughput: gpupipe against DALI pipelines written by hand and against torchvision, on the
same cores.

    # about 15 minutes, with nothing beside it; writes benchmarks/results/core.json
    python benchmarks/core.py
    python benchmarks/core.py --only lfw-affine  # one workload; writes core.lfw-affine.json
    python benchmarks/core.py --quick  # a check that it runs
    # engine cpu against all others, on one workload in about 8 minutes
    python benchmarks/core.py --engines --only lfw-affine --seconds 3
    # one contestant, one process, one line of JSON
    python benchmarks/core.py --one hand-written imagenet_eval

Answers: images a second, CPU seconds per 1,000 images, time to the first batch (imports left out)
and peak memory (PSS), as medians of interleaved rounds in fresh processes, and whether gpupipe's
goals hold. torchvision's DataLoader runs at the worker count and with the decoder that a
preliminary run finds best. Images are cut from real photographs (benchmarks/photos.py); with
--copies 4 each of them counts four times (hard links), since 1,000 images make epochs of 8 batches,
where the end of an epoch weighs more than in ImageNet.

With --engines the contestants are engine cpu with and without its kernels in C++, engine dali, DALI
and OpenCV on threads by hand, the best DataLoader, and small C++ kernels without a loader around
them (benchmarks/yardstick), which say what the cores can do.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import baselines
import core_engines
import harness
import measuring
import round_statistics

_TORCHVISION = [
    f"torchvision-{decoder}-{workers}" for decoder in ("tensor", "pil") for workers in (0, 1, 2)
]
_PRELIMINARY_SECONDS, _PRELIMINARY_IMAGES = 4.0, 1000
_WARM_SECONDS = 2.0
_GOALS = {"lfw-affine": (1.0, 3.0), "imagenet_train": (0.95, 1.3), "imagenet_eval": (1.25, 1.35)}
_MEMORY_GOAL = 1.1


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments)))
        return
    for name in workloads(arguments):
        baselines.images_root(
            baselines.WORKLOADS[name], arguments.data, arguments.images, arguments.copies
        )
    compare = compared_engines if arguments.engines else compared
    result = {name: compare(name, arguments) for name in workloads(arguments)}
    parts = ["core", arguments.only, "engines" if arguments.engines else None]
    path = harness.write(".".join(filter(None, parts)), {"workloads": result}, arguments)
    for name, found in result.items():
        report(name, found)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=8.0)
    harness.add_number(parser, "--images", 5000, "most images of a set (ImageNet's have 1000)")
    harness.add_number(parser, "--copies", 1, "names of each file, for longer epochs")
    parser.add_argument("--engines", action="store_true", help="engine cpu against all others")
    parser.add_argument(
        "--dataloader",
        choices=_TORCHVISION,
        help="the best DataLoader, if it is known (default: a run of each finds it)",
    )
    harness.add_selection(parser, baselines.WORKLOADS)
    return harness.parsed(parser, images=500)


def workloads(arguments: argparse.Namespace) -> list[str]:
    return [arguments.only] if arguments.only else list(baselines.WORKLOADS)


# --- one contestant, in a process of its own


def one(contestant: str, workload_name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a contestant does with a workload: what measuring.measure returns."""
    workload = baselines.WORKLOADS[workload_name]
    root = baselines.images_root(workload, arguments.data, arguments.images, arguments.copies)
    kind, *how = contestant.split("-")
    if kind == "torchvision":
        return _torchvision(workload, root, how[0], int(how[1]), arguments)
    if kind == "gpupipe":
        if "off" in how:
            os.environ["GPUPIPE_KERNELS"] = "off"
        return _gpupipe(workload, root, how[0] if how else "dali", arguments)
    if kind == core_engines.OPENCV:
        return _opencv(workload, root, arguments)
    if kind == core_engines.YARDSTICK:
        return _yardstick(workload, root, arguments)
    return _hand_written(workload, root, arguments)


def _gpupipe(
    workload: baselines.Workload, root: Path, engine: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    import gpupipe.engines.registry
    import gpupipe.loader

    gpupipe.engines.registry.find(engine)  # before the clock starts

    config = {"data": {"source": "folder", "root": str(root)}, "pipeline": workload.pipeline}

    def build() -> Any:
        return gpupipe.load(
            config,
            engine=engine,
            batch_size=workload.batch_size,
            shuffle=workload.shuffle,
            device="cpu",
        )

    return measuring.measure(
        build, lambda batch: batch["image"].shape[0], arguments.seconds, _WARM_SECONDS
    )


def _hand_written(
    workload: baselines.Workload, root: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    import nvidia.dali.plugin.pytorch  # noqa: F401  # before the clock starts

    graph = baselines.ON_CPU[workload.pipeline]

    def build() -> Any:
        return baselines.dali_batches(
            baselines.dali_pipeline(
                graph, root, workload.batch_size, harness.threads(), workload.shuffle
            )
        )

    return measuring.measure(build, baselines.dali_size, arguments.seconds, _WARM_SECONDS)


def _opencv(
    workload: baselines.Workload, root: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    import opencv_threads

    return measuring.measure(
        lambda: opencv_threads.Batches(workload, root, harness.threads()),
        len,
        arguments.seconds,
        _WARM_SECONDS,
    )


def _yardstick(
    workload: baselines.Workload, root: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """A pass is one batch here, so its first batch is a whole epoch."""
    import yardstick

    library, reason = yardstick.build(arguments.data / "yardstick")
    if library is None:
        raise RuntimeError(reason)
    how = workload.batch_size, harness.threads(), workload.shuffle
    return measuring.measure(
        lambda: yardstick.Passes(library, workload.pipeline, root, *how),
        int,
        arguments.seconds,
        _WARM_SECONDS,
    )


def _torchvision(
    workload: baselines.Workload,
    root: Path,
    decoder: str,
    workers: int,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    import torchvision.datasets
    import torchvision.transforms.v2  # noqa: F401  # before the clock starts

    def build() -> Any:
        return baselines.torchvision_batches(workload, root, decoder, workers)

    return measuring.measure(build, baselines.torchvision_size, arguments.seconds, _WARM_SECONDS)


# --- all of them, compared


def compared(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A workload's rounds, and what they say."""
    best, preliminary = _find_best_dataloader(name, arguments)
    contestants = ["gpupipe", "hand-written", best]
    rounds = _interleaved(name, contestants, arguments)
    own, hand, loader = (rounds[c] for c in contestants)
    ratios = {
        "gpupipe / hand-written DALI": round_statistics.ratio(own, hand),
        f"gpupipe / {best}": round_statistics.ratio(own, loader),
        "peak memory, gpupipe / hand-written DALI": round_statistics.ratio(
            own, hand, "peak_memory_mib"
        ),
    }
    shown = _describe(name, best, preliminary, rounds)
    return shown | {"rounds": rounds, "ratios": ratios, "goals": _goals(name, ratios)}


def compared_engines(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A workload's rounds by engine cpu and all others.

    CPU time counts beside other processes too; images a second count on a quiet machine.
    """
    import yardstick

    best, preliminary = _find_best_dataloader(name, arguments)
    contestants = [*core_engines.CONTESTANTS, best]
    library, reason = yardstick.build(arguments.data / "yardstick")
    if library is None:
        harness.say(f"{name}: no small C kernels: {reason}")
    else:
        contestants.append(core_engines.YARDSTICK)
    rounds = _interleaved(name, contestants, arguments)
    shown = _describe(name, best, preliminary, rounds) | {"no_yardstick": reason}
    return shown | {"rounds": rounds} | core_engines.compare(name, rounds)


def _find_best_dataloader(
    name: str, arguments: argparse.Namespace
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The fastest of torchvision's contestants, and the preliminary run of each."""
    if arguments.dataloader:
        return arguments.dataloader, {}
    seconds, images = (
        min(arguments.seconds, _PRELIMINARY_SECONDS),
        min(arguments.images, _PRELIMINARY_IMAGES),
    )
    preliminary = {c: _run(c, name, arguments, seconds, images) for c in _TORCHVISION}
    best = max(preliminary, key=lambda c: preliminary[c]["images_per_second"])
    harness.say(f"{name}: the best DataLoader is {best}")
    return best, preliminary


def _interleaved(
    name: str, contestants: list[str], arguments: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    return harness.interleaved(
        lambda c: _run(c, name, arguments, arguments.seconds, arguments.images),
        contestants,
        arguments.rounds,
        name,
    )


def _describe(name: str, best: str, preliminary: Any, rounds: Any) -> dict[str, Any]:
    everything = {c: [r] for c, r in preliminary.items()} | rounds
    return {
        "disturbed": round_statistics.disturbed(everything),
        "workload": vars(baselines.WORKLOADS[name]),
        "torchvision": best,
        "preliminary": preliminary,
    }


def _run(
    contestant: str, workload: str, arguments: argparse.Namespace, seconds: float, images: int
) -> dict[str, Any]:
    size = ["--seconds", str(seconds), "--images", str(images)]
    return harness.fresh(
        __file__, "--one", contestant, workload, *size, *harness.passed_on(arguments, "copies")
    )


def _goals(name: str, ratios: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    (to_hand, hand), (to_loader, loader), (to_memory, memory) = ratios.items()
    bounds = _GOALS[name]
    return [
        round_statistics.goal(to_hand, hand["median"], bounds[0]),
        round_statistics.goal(to_loader, loader["median"], bounds[1]),
        round_statistics.goal(to_memory, memory["median"], _MEMORY_GOAL, at_most=True),
    ]


def report(name: str, found: dict[str, Any]) -> None:
    best = found.get("torchvision")
    print(f"\n{name}" + (f" (best DataLoader: {best})" if best else ""))
    round_statistics.print_table(found["rounds"])
    print(
        "  shared the cores with other processes, preliminary runs included: "
        f"{', '.join(found['disturbed']) or 'none'}"
    )
    for what, ratio in found["ratios"].items():
        round_statistics.print_ratio(what, ratio)
    round_statistics.print_goals(found["goals"])


if __name__ == "__main__":
    main()
