"""A Dataset of JPEG bytes beside the source folder, on the CPU engine.

    # about 2 minutes, with nothing beside it; writes benchmarks/results/dataset.json
    python benchmarks/dataset.py
    python benchmarks/dataset.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/dataset.py --one bytes

Method: photographs of 500x375, cropped to 224 at random, as floats. The Dataset has the bytes of
the files in memory, and their labels. Each contestant runs in a fresh process, in turns.
"""

import argparse
import json
import time
from statistics import median
from typing import Any

import harness
import photos

_CONTESTANTS = ("folder", "bytes", "paths")
_GOAL = 0.95
_STEPS: list[Any] = [
    "decode",
    {"random_resized_crop": {"size": 224}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


class Photos:
    """The files of a folder, as bytes or as paths, each with a label."""

    def __init__(self, root: Any, as_bytes: bool) -> None:
        paths = sorted(root.glob("*/*.*"))
        self.items = [path.read_bytes() if as_bytes else str(path) for path in paths]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[bytes | str, int]:
        return self.items[index], index % 10


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments)))
        return
    photos.imagenet_like(arguments.data, arguments.images)
    options = harness.passed_on(arguments, "images", "seconds")
    rounds = harness.interleaved(
        lambda name: harness.fresh(__file__, "--one", name, *options),
        _CONTESTANTS,
        arguments.rounds,
        "data sets",
    )
    rates = {name: median(r["images_per_second"] for r in found) for name, found in rounds.items()}
    for name, rate in rates.items():
        cpu = median(r["cpu_us"] for r in rounds[name])
        ratio = rate / rates["folder"]
        print(f"{name:7} {rate:7.0f} images/s, {ratio:.2f} of folder, {cpu:.0f} us CPU an image")
    holds = "holds" if rates["bytes"] >= _GOAL * rates["folder"] else "FAILS"
    print(f"goal for bytes {_GOAL}: {holds}")
    content = {"rounds": rounds, "ratio": rates["bytes"] / rates["folder"]}
    print(f"written to {harness.write('dataset', content, arguments)}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=4.0)
    parser.add_argument("--one", choices=_CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--images", type=int, default=1000, help="default: %(default)s")
    return harness.parsed(parser, images=100)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the images a second of one contestant, and its CPU time, after an epoch to warm up."""
    import gpupipe

    root = photos.imagenet_like(arguments.data, arguments.images)
    options: dict[str, Any] = {"device": "cpu", "engine": "cpu", "batch_size": 64}
    if name == "folder":
        config = {"data": {"source": "folder", "root": str(root)}, "pipeline": _STEPS}
        loader = gpupipe.load(config, **options)
    else:
        loader = gpupipe.load(Photos(root, name == "bytes"), pipeline=_STEPS, **options)
    with loader:
        for _ in loader:
            pass
        images, begin, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < arguments.seconds:
            for batch in loader:
                images += len(batch["image"])
        cpu = time.process_time() - cpu
        rate = images / (time.perf_counter() - begin)
        return {"images_per_second": rate, "cpu_us": cpu / images * 1e6}


if __name__ == "__main__":
    main()
