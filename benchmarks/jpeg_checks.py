"""What the checks of JPEGs before a GPU's decoder cost: the end marker, and the compressed data.

    python benchmarks/jpeg_checks.py    # writes benchmarks/results/jpeg_checks.json

Files are windows of photographs as ImageNet has them, in memory. Of each file the least of several
runs counts, since other processes of the machine only add to it.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
import photos

from gpupipe.engines.dali.files import check_ends, looks_damaged

_TAIL = b"appended by a scanner\n" * 9
CHECKS: dict[str, Callable[[Any], object]] = {
    "end marker": lambda data: check_ends([data]),
    "compressed data": looks_damaged,
}


def main() -> None:
    parser = harness.options(__doc__)
    harness.add_number(parser, "--images", 200, "files")
    harness.add_number(parser, "--repeats", 20, "runs")
    arguments = harness.parsed(parser, images=4, repeats=2)
    harness.prepare(arguments)
    root = photos.imagenet_like(arguments.data, arguments.images)
    files = [np.fromfile(path, np.uint8) for path in sorted(root.glob("*/*.jpg"))]
    tailed = [np.concatenate([file, np.frombuffer(_TAIL, np.uint8)]) for file in files]
    result: dict[str, Any] = {
        "files": len(files),
        "mean_bytes": statistics.fmean(map(len, files)),
        "suspicious": sum(looks_damaged(file) for file in files),
        "microseconds": {name: measure(f, files, arguments.repeats) for name, f in CHECKS.items()},
    }
    ends = measure(CHECKS["end marker"], tailed, arguments.repeats)
    result["microseconds"]["end marker before 198 other bytes"] = ends
    harness.say(str(result))
    harness.write("jpeg_checks", result, arguments)


def measure(check: Callable[[Any], object], files: list[Any], repeats: int) -> float:
    """The mean over files of the least microseconds that the check takes."""
    return statistics.fmean(
        min(_seconds(check, file) for _ in range(repeats)) * 1e6 for file in files
    )


def _seconds(check: Callable[[Any], object], file: Any) -> float:
    started = time.perf_counter()
    check(file)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
