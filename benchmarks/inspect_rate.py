"""What `gpupipe inspect` costs a photograph, beside decoding it alone.

    python benchmarks/inspect_rate.py    # writes benchmarks/results/inspect_rate.json

Both look at the same JPEGs of 500x375, in turn, on one thread a core. "decode" decodes files that
are in memory, whole, with libjpeg-turbo. "inspect" is a scan that nothing is known of before: it
reads the files (from the page cache), decodes, counts and hashes them, and saves the results.
CPU time is that of all threads; the ratio is one of the CPU times of each round.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import numpy as np
import photos
from round_statistics import median, ratio
from simplejpeg import decode_jpeg

from gpupipe import config as configs
from gpupipe.inspection.scan import scan
from gpupipe.runtime.progress import ignore_progress


def main() -> None:
    parser = harness.options(__doc__)
    harness.add_number(parser, "--images", 200, "photographs")
    harness.add_number(parser, "--copies", 20, "names of each")
    harness.add_number(parser, "--rounds", 7, "rounds")
    harness.add_number(parser, "--quality", 96, "of the JPEGs")
    arguments = harness.parsed(parser, images=8, copies=2)
    harness.prepare(arguments)
    root = photos.crops(arguments.data, arguments.images, (500, 375), arguments.quality)
    root = photos.copied(root, arguments.copies)
    paths = sorted(root.glob("*/*.jpg"))
    contestants = {"decode": lambda: decode(paths), "inspect": lambda: inspect(root)}
    for run in contestants.values():
        run()
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for _ in range(arguments.rounds):
        for name, run in contestants.items():
            rounds[name].append(run())
    result = {
        "files": len(paths),
        "mean_bytes": statistics.fmean(path.stat().st_size for path in paths),
        "threads": harness.threads(),
        "cpu_ms_per_file": {name: median(found, "cpu_ms") for name, found in rounds.items()},
        "wall_ms_per_file": {name: median(found, "wall_ms") for name, found in rounds.items()},
        "ratio": ratio(rounds["inspect"], rounds["decode"], "cpu_ms"),
        "rounds": rounds,
    }
    harness.say(str({name: value for name, value in result.items() if name != "rounds"}))
    harness.write("inspect_rate", result, arguments)


def decode(paths: list[Path]) -> dict[str, float]:
    """Decode all files once; reading them is not counted."""
    files = [np.fromfile(path, np.uint8) for path in paths]
    threads = harness.threads()
    parts = [files[n : n + 64] for n in range(0, len(files), 64)]

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(decode_all, parts))

    return measure(run, len(files))


def decode_all(files: list[Any]) -> None:
    for file in files:
        decode_jpeg(file, "RGB", fastdct=False, fastupsample=False)


def inspect(root: Path) -> dict[str, float]:
    """Inspect all files once, with a cache folder of its own."""
    source = {"source": "folder", "root": str(root)}
    config = configs.read({"data": source, "pipeline": ["decode"], "loader": {"batch_size": 1}})
    index = config.source.index()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUPIPE_CACHE"] = folder
        return measure(lambda: scan("train", config, index, False, ignore_progress), len(index))


def measure(run: Callable[[], object], files: int) -> dict[str, float]:
    """Run once: milliseconds of CPU time and of wall time a file."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_ms": cpu / files * 1e3, "wall_ms": wall / files * 1e3}


if __name__ == "__main__":
    main()
