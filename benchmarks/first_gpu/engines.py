"""How many images a second do the engines bring to the GPU, with how many cores?

engine: cpu decodes and augments on the CPU and copies its batches; engine: dali does all on the
GPU. Each runs `imagenet_train` on 1, 2, 4, ... cores, each time in a process of its own that is
held to them.
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import part

_STAGE_SECONDS = 25.0
_ENGINES = ("cpu", "dali")


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    root, what = part.images(arguments, "imagenet", 40 if arguments.quick else 3000)
    if arguments.stage:
        engine, cores = arguments.stage
        print(json.dumps(_measure(root, engine, int(cores), arguments)))
        return
    result = part.Part("engines", arguments)
    result.figures(data=what)
    found: dict[str, dict[int, float]] = {engine: {} for engine in _ENGINES}
    for cores in reversed(steps(len(os.sched_getaffinity(0)))):
        for engine in _ENGINES:
            name = f"engine: {engine}, {cores} cores"
            result.attempt(name, partial(_add, result, found, engine, cores, arguments))
    for engine, rates in found.items():
        result.check(f"engine: {engine} was measured", bool(rates))
    best = [f"{engine} {max(rates.values()):,.0f}" for engine, rates in found.items() if rates]
    result.headline(f"{', '.join(best)} images/s on the device")
    result.finish()


def steps(cores: int) -> list[int]:
    """Powers of two up to the number of cores, and that number."""
    return [*(1 << n for n in range(cores.bit_length()) if 1 << n < cores), cores]


def _add(
    result: part.Part,
    found: dict[str, dict[int, float]],
    engine: str,
    cores: int,
    arguments: argparse.Namespace,
) -> None:
    figures = part.stage(__file__, arguments, engine, str(cores), limit=_STAGE_SECONDS)
    found[engine][cores] = figures["images_per_second"]
    result.figures(**found)


def _measure(
    root: Path, engine: str, cores: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """Images a second on the device, after a warm-up."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import gpupipe

    config = {"data": {"source": "folder", "root": str(root)}, "pipeline": "imagenet_train"}
    options = {"engine": engine, "device": arguments.device, "threads": cores}
    options |= {"batch_size": 4 if arguments.quick else 128, "last_batch": "drop"}
    warm, seconds = (0.1, 0.2) if arguments.quick else (1.0, 4.0)
    with gpupipe.load(config, **options) as loader:
        _consume(loader, warm)
        images, wall = _consume(loader, seconds)
    return {"images_per_second": images / wall}


def _consume(loader: Any, seconds: float) -> tuple[int, float]:
    """Take batches for some seconds; return how many images came, and after how many seconds."""
    import torch

    images, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for batch in loader:
            images += len(batch["label"])
            if time.perf_counter() - started >= seconds:
                break
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return images, time.perf_counter() - started


if __name__ == "__main__":
    main()
