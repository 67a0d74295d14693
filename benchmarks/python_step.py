"""A function of 3 ms a sample that holds the interpreter's lock: in two processes of the step
python, in its threads, and in two workers of torch's DataLoader that decode and call it.

    # about 3 minutes, with nothing beside it; writes benchmarks/results/python_step.json
    python benchmarks/python_step.py
    python benchmarks/python_step.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/python_step.py --one workers

Method: photographs of 500x375, decoded, called with the function, and cropped to 224. Each
contestant runs in a fresh process, in turns. A thread of C looks whether the lock is held, as in
gil.py: that is the share of its time for which the trainer's thread would wait for the lock. It is
measured where the batches are used; DataLoader's workers have locks of their own.
"""

import argparse
import json
import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import gil
import harness
import photos

_MILLISECONDS = 3.0
_WORKERS = 2
_BATCH_SIZE = 32
_CONTESTANTS = ("workers", "threads", "dataloader")
_CROP = {"center_crop": {"size": 224}}
_GOAL_RATE, _GOAL_SHARE = 1.1, 0.05


def slow(image: Any) -> Any:
    """Hold the lock for 3 ms of the core's time."""
    end = time.thread_time() + _MILLISECONDS / 1e3
    while time.thread_time() < end:
        pass
    return image


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    photos.imagenet_like(arguments.data, arguments.images)
    options = harness.passed_on(arguments, "images", "seconds")
    rounds = harness.interleaved(
        lambda name: harness.fresh(__file__, "--one", name, *options),
        _CONTESTANTS,
        arguments.rounds,
        "calls",
    )
    rates = {name: median(r["images_per_second"] for r in found) for name, found in rounds.items()}
    share = median(r["lock_share"] for r in rounds["workers"])
    ratio = rates["workers"] / rates["dataloader"]
    for name, rate in rates.items():
        held = median(r["lock_share"] for r in rounds[name])
        print(f"{name:10} {rate:7.0f} images/s, lock held {held:6.1%} of the time")
    print(f"workers / dataloader: {ratio:.2f} (goal {_GOAL_RATE}: {_judge(ratio >= _GOAL_RATE)})")
    print(
        f"lock, with workers: {share:.1%} (goal {_GOAL_SHARE:.0%}: {_judge(share < _GOAL_SHARE)})"
    )
    content = {"rounds": rounds, "ratio": ratio, "lock_share": share}
    print(f"written to {harness.write('python_step', content, arguments)}")


def _judge(holds: bool) -> str:
    return "holds" if holds else "FAILS"


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=3, seconds=8.0)
    parser.add_argument("--one", choices=_CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--images", type=int, default=1000, help="default: %(default)s")
    return harness.parsed(parser, images=200)


def one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one contestant here."""
    import torch

    torch.set_num_threads(1)
    root = photos.imagenet_like(arguments.data, arguments.images)
    loader = _dataloader(root) if name == "dataloader" else _gpupipe(root, name)
    probe = gil.load_probe(arguments.data)
    for _ in loader:  # starts what there is to start
        pass
    return _measure(loader, probe, arguments.seconds)


def _measure(loader: Iterable[Any], probe: Any, seconds: float) -> dict[str, Any]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        counts, images, begin = thread.submit(probe, seconds), 0, time.perf_counter()
        while not counts.done():
            for batch in loader:
                images += len(batch["image"] if isinstance(batch, dict) else batch[0])
                if counts.done():
                    break
        wall = time.perf_counter() - begin
    return {"images_per_second": images / wall, "lock_share": counts.result().share}


def _gpupipe(root: Any, name: str) -> Iterable[Any]:
    import gpupipe

    call = {"call": "python_step:slow", "workers": _WORKERS if name == "workers" else 0}
    config = {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": ["decode", {"python": call}, _CROP],
    }
    return gpupipe.load(
        config, device="cpu", engine="cpu", batch_size=_BATCH_SIZE, threads=_WORKERS
    )


def _dataloader(root: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = v2.Compose([v2.PILToTensor(), slow, v2.CenterCrop(224)])
    return DataLoader(
        ImageFolder(root, steps),
        batch_size=_BATCH_SIZE,
        shuffle=True,
        num_workers=_WORKERS,
        persistent_workers=True,
    )


if __name__ == "__main__":
    main()
