"""gpupipe's DataLoader engine against ImageFolder + DataLoader written by hand, with the same
decoder and workers, on the same cores.

    # about 10 minutes, with nothing beside it; writes benchmarks/results/dataloader.json
    python benchmarks/dataloader.py
    python benchmarks/dataloader.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/dataloader.py --one gpupipe affine 2

A comparison with DALI is worth no more than the DataLoader that it is made with: the engine must do
at least 0.97 of the one by hand.
"""

import argparse
import json
import warnings
from typing import Any

import baselines
import harness
import measuring
import round_statistics

_GOAL = 0.97
_WARM_SECONDS = 2.0
_CONTESTANTS = ("gpupipe", "by hand")


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        contestant, workload, workers = arguments.one
        print(json.dumps(one(contestant, workload, int(workers), arguments)))
        return
    names = [arguments.only] if arguments.only else list(baselines.WORKLOADS)
    for name in names:
        baselines.images_root(baselines.WORKLOADS[name], arguments.data, arguments.images)
    result = {
        f"{name}, {workers} workers": compared(name, workers, arguments)
        for name in names
        for workers in arguments.workers
    }
    path = harness.write("dataloader", {"workloads": result}, arguments)
    for title, found in result.items():
        print(f"\n{title}")
        round_statistics.print_table(found["rounds"])
        round_statistics.print_ratio("gpupipe / by hand", found["ratio"])
        round_statistics.print_goals(found["goals"])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=6.0)
    harness.add_number(parser, "--images", 2000, "most images of a set")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 2], help="worker processes (default: 0 2)"
    )
    parser.add_argument("--only", choices=sorted(baselines.WORKLOADS), help="one workload")
    parser.add_argument(
        "--one",
        nargs=3,
        metavar=("CONTESTANT", "WORKLOAD", "WORKERS"),
        help="run one contestant here, and print one line of JSON",
    )
    return harness.parsed(parser, images=500)


def one(contestant: str, name: str, workers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a contestant does with a workload: what measuring.measure returns."""
    warnings.simplefilter("ignore")
    workload = baselines.WORKLOADS[name]
    root = baselines.images_root(workload, arguments.data, arguments.images)
    if contestant == "by hand":
        import torchvision.datasets
        import torchvision.transforms.v2  # noqa: F401  # imported before the clock starts

        return measuring.measure(
            lambda: baselines.torchvision_batches(workload, root, "tensor", workers),
            baselines.torchvision_size,
            arguments.seconds,
            _WARM_SECONDS,
        )
    import gpupipe.engines.dataloader.engine
    import gpupipe.loader

    config = {"data": {"source": "folder", "root": str(root)}, "pipeline": workload.pipeline}
    options = {
        "batch_size": workload.batch_size,
        "shuffle": workload.shuffle,
        "engine": "dataloader",
        "workers": workers,
        "device": "cpu",
    }
    return measuring.measure(
        lambda: gpupipe.load(config, **options),
        lambda batch: batch["image"].shape[0],
        arguments.seconds,
        _WARM_SECONDS,
    )


def compared(name: str, workers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The rounds of a workload, and what they say."""
    size = ["--seconds", str(arguments.seconds), "--images", str(arguments.images)]

    def run(contestant: str) -> dict[str, Any]:
        return harness.fresh(
            __file__, "--one", contestant, name, str(workers), *size, *harness.passed_on(arguments)
        )

    rounds = harness.interleaved(run, _CONTESTANTS, arguments.rounds, f"{name}, {workers} workers")
    ratio = round_statistics.ratio(rounds["gpupipe"], rounds["by hand"])
    goals = [round_statistics.goal("gpupipe / by hand", ratio["median"], _GOAL)]
    return {
        "disturbed": round_statistics.disturbed(rounds),
        "rounds": rounds,
        "ratio": ratio,
        "goals": goals,
    }


if __name__ == "__main__":
    main()
