"""The decoded cache (data.cache_decoded): epochs after the first, with it and without it.

    # about 10 minutes, with nothing beside it; writes benchmarks/results/decoded_cache.json
    python benchmarks/decoded_cache.py
    python benchmarks/decoded_cache.py --quick  # a check that it runs
    python benchmarks/decoded_cache.py --only imagenet --engine dali

Contestants take turns, each in a new process on the same cores. A whole epoch, which fills the
cache, passes before the measurement. `imagenet` resizes to 256 before the random crop, on both
sides.
"""

import argparse
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import harness
import measuring
import photos
import round_statistics

_CONTESTANTS = {"without": None, "memory": "memory", "disk": "disk"}
_GOALS = {"lfw": 1.5, "imagenet": 1.8}
_WARM_SECONDS = 2.0
_MEMORY = Path("/dev/shm/gpupipe-benchmark")
"""Not the folder of the user's own caches."""
_FLOATS: list[Any] = [
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]
_AFFINE = {
    "degrees": 5,
    "translate": [0.1, 0.1],
    "scale": [0.5, 2.0],
    "interpolation": "bilinear",
}
_PIPELINES: dict[str, list[Any]] = {
    "lfw": ["decode", {"random_affine": _AFFINE}, _FLOATS[0]],
    "imagenet": [
        "decode",
        {"resize": {"size": 256}},
        {"random_resized_crop": {"size": 224}},
        "random_horizontal_flip",
        *_FLOATS,
    ],
}


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    os.environ["GPUPIPE_SHM"] = str(_MEMORY)
    _MEMORY.mkdir(exist_ok=True)
    roots = {name: _create_images(name, arguments) for name in _PIPELINES}
    if arguments.one:
        contestant, workload = arguments.one
        print(json.dumps(_measure(contestant, workload, roots[workload], arguments)))
        return
    chosen = [arguments.only] if arguments.only else list(_PIPELINES)
    try:
        results = {name: _run_rounds(name, arguments) for name in chosen}
    finally:
        _remove_caches()
    goals = [
        round_statistics.goal(
            f"{name}: in memory, of without",
            results[name]["ratios"]["memory of without"]["median"],
            _GOALS[name],
        )
        for name in chosen
    ]
    path = harness.write("decoded_cache", {"workloads": results, "goals": goals}, arguments)
    for name, result in results.items():
        print(name)
        round_statistics.print_table(result["rounds"])
        for title, ratio in result["ratios"].items():
            round_statistics.print_ratio(title, ratio)
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, 5, 6.0)
    harness.add_selection(parser, _PIPELINES)
    parser.add_argument("--engine", default="cpu", help="default: %(default)s")
    parser.add_argument("--images", type=int, default=2000, help="default: %(default)s")
    return harness.parsed(parser, images=60)


def _create_images(workload: str, arguments: argparse.Namespace) -> Path:
    make = photos.lfw_like if workload == "lfw" else photos.imagenet_like
    return make(arguments.data / f"{workload}-{arguments.images}", arguments.images)


def _run_rounds(workload: str, arguments: argparse.Namespace) -> dict[str, Any]:
    _remove_caches()
    shared = harness.passed_on(arguments, "seconds", "images", "engine")
    rounds = harness.interleaved(
        lambda name: harness.fresh(__file__, "--one", name, workload, *shared),
        _CONTESTANTS,
        arguments.rounds,
        workload,
    )
    return {
        "engine": arguments.engine,
        "pipeline": _PIPELINES[workload],
        "images": arguments.images,
        "disturbed": round_statistics.disturbed(rounds),
        "rounds": rounds,
        "ratios": {
            f"{name} of without": round_statistics.ratio(rounds[name], rounds["without"])
            for name in ("memory", "disk")
        },
    }


def _measure(
    contestant: str, workload: str, root: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    import gpupipe

    where = _CONTESTANTS[contestant]
    cache = {"where": where, "max_bytes": "2GB"} if where else None
    config = {
        "data": {"source": "folder", "root": root, "cache_decoded": cache},
        "pipeline": _PIPELINES[workload],
    }
    settings = {"engine": arguments.engine, "device": "cpu", "batch_size": 64}
    open_loader = partial(gpupipe.load, config, threads=harness.threads(), **settings)
    return measuring.measure(
        open_loader, lambda batch: len(batch["label"]), arguments.seconds, _WARM_SECONDS
    )


def _remove_caches() -> None:
    """Remove the caches of this benchmark: each run begins with none."""
    from gpupipe.decoded_cache.location import cache_folder

    for where in ("memory", "disk"):
        shutil.rmtree(cache_folder(where), ignore_errors=True)


if __name__ == "__main__":
    main()
