"""What the check of cached images costs, which each process makes when it first uses an image.

    # about 2 minutes; writes benchmarks/results/cache_checks.json
    python benchmarks/cache_checks.py
    python benchmarks/cache_checks.py --quick  # a check that it runs

A process reads all images of a cache in shuffled batches: for the first time, which compares the
CRC-32 of each with the table of its shard, and again. The shards are in the page cache. Contestants
take turns: the extension, which reads and checks a batch without the GIL, and zlib, which takes its
place where the extension is missing.
"""

import argparse
import json
import os
import time
from typing import Any

import harness
import numpy as np
import remote_store
import round_statistics

_CONTESTANTS = {"extension": "on", "zlib": "off"}
_SHARD_BYTES = 16_000_000


def main() -> None:
    parser = harness.options(__doc__)
    harness.add_number(parser, "--images", 1000, "files")
    harness.add_number(parser, "--batch", 32, "images at once")
    harness.add_number(parser, "--repeats", 5, "pairs of passes in a round")
    harness.add_number(parser, "--rounds", 5, "rounds")
    parser.add_argument("--one", choices=_CONTESTANTS, help="measure one here; print its JSON")
    arguments = harness.parsed(parser, images=100, repeats=1)
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(measure(arguments)))
        return
    fill(arguments)
    rounds = harness.interleaved(
        lambda name: run_fresh(name, arguments), _CONTESTANTS, arguments.rounds, "cache_checks"
    )
    result = {"batch": arguments.batch, "images": arguments.images, "contestants": rounds}
    path = harness.write("cache_checks", result, arguments)
    for name, found in rounds.items():
        medians = {key: round_statistics.median(found, key) for key in found[0] if "seconds" in key}
        print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in medians.items()))
    print(f"written to {path}")


def run_fresh(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    os.environ["GPUPIPE_KERNELS"] = _CONTESTANTS[name]
    words = harness.passed_on(arguments, "images", "batch", "repeats")
    return harness.fresh(__file__, "--one", name, *words)


def open_source(arguments: argparse.Namespace) -> Any:
    """Return the source of local files, with a cache in a folder of --data."""
    from gpupipe.sources.remote import Remote

    root = remote_store.images(arguments.data, arguments.images)
    cache = {
        "dir": arguments.data / f"cache-checks-{arguments.images}",
        "max_bytes": 10**10,
        "shard_size": _SHARD_BYTES,
        "workers": 0,
    }
    return Remote(url=f"file://{root}", cache=cache)


def fill(arguments: argparse.Namespace) -> None:
    """Fill the cache with all images."""
    from gpupipe.cache.worker_pool import WorkerPool

    source = open_source(arguments)
    source.index()
    workers = WorkerPool(source.dataset, source.cache, 1, "fill")
    while workers.read_outcomes() is None:
        time.sleep(0.02)
    workers.stop()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds a gigabyte of first and of later reads, the least of all passes.

    Other processes of the machine only add to them.
    """
    from gpupipe.cache.shard_column import forget_checked

    source = open_source(arguments)
    index = source.index()
    column = index.columns["image"]
    rows = np.random.default_rng(0).permutation(source.find_available_rows(index))
    batches = np.split(rows, range(arguments.batch, len(rows), arguments.batch))
    size = read_all(column, batches)
    passes: dict[str, list[tuple[float, float]]] = {"first": [], "later": []}
    for _ in range(arguments.repeats):
        forget_checked(column.root, column.num_rows)
        for seconds in passes.values():
            cpu, wall = time.process_time(), time.perf_counter()
            read_all(column, batches)
            seconds.append((time.process_time() - cpu, time.perf_counter() - wall))
    result: dict[str, Any] = {"bytes": size}
    for name, seconds in passes.items():
        cpu, wall = (min(each) / size * 1e9 for each in zip(*seconds, strict=True))
        result |= {f"{name}: CPU seconds a GB": cpu, f"{name}: seconds a GB": wall}
    least = min(wall for _, wall in passes["first"])
    return result | {"images_per_second": len(rows) / least}


def read_all(column: Any, batches: list[Any]) -> int:
    """Read all batches, and return their bytes."""
    return sum(len(image) for rows in batches for image in column.read(rows))


if __name__ == "__main__":
    main()
