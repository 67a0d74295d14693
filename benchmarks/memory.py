"""Memory over many epochs, and how soon the first batch comes.

    python benchmarks/memory.py            # about 2 minutes; writes benchmarks/results/memory.json
    python benchmarks/memory.py --quick    # a check that it runs

Answers: the resident set (/proc/self/statm) after every epoch of 500 LFW-like images through
gpupipe.load on the CPU, and the seconds from the end of the imports to the first batch of 5,000
images with a cached index, in fresh processes (goal: 2 s).

A single look at the resident set varies by a tenth with what the C library happens to keep of freed
memory, up as well as down. So after every tenth epoch it is asked to give that back (malloc_trim)
before a second look: what is left is what is held. Goal: at most 5 % more of that after epoch 100
than after the tenth. The plain figures, and medians of ten of them, are given beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import harness
import measuring
import photos
import round_statistics

_FIRST_LOOKS = (5, 10)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EPOCHS_BATCH, _FIRST_BATCH = 64, 256


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(
            json.dumps(
                first_batch(arguments) if arguments.one == "first-batch" else epochs(arguments)
            )
        )
        return
    (
        photos.lfw_like(arguments.data, arguments.images),
        photos.lfw_like(arguments.data, arguments.first_images),
    )
    found = {"epochs": _run("epochs", arguments), "first_batch": _first_batches(arguments)}
    goals = [
        round_statistics.goal(
            "RSS without freed memory, after the last epoch / after the 10th",
            found["epochs"]["growth_held"],
            1.05,
            at_most=True,
        ),
        round_statistics.goal(
            "seconds to the first batch", found["first_batch"]["median"], 2.0, at_most=True
        ),
    ]
    path = harness.write("memory", found | {"goals": goals}, arguments)
    rss, looks = found["epochs"]["rss_mib"], [*_FIRST_LOOKS, *range(20, arguments.epochs + 1, 10)]
    print(
        "RSS in MiB after epoch: " + ", ".join(f"{epoch} {rss[epoch - 1]:.0f}" for epoch in looks)
    )
    print(
        "  without freed memory: "
        + ", ".join(f"{n} {mib:.0f}" for n, mib in found["epochs"]["held_mib"].items())
    )
    print(
        "  plain figures, last / 10th: {growth:.3f}; medians of ten: "
        "{growth_of_medians:.3f}".format(**found["epochs"])
    )
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.options(__doc__)
    parser.add_argument(
        "--epochs", type=int, default=100, help="epochs to run (default: %(default)s)"
    )
    parser.add_argument(
        "--images", type=int, default=500, help="images of an epoch (default: %(default)s)"
    )
    parser.add_argument(
        "--first-images",
        type=int,
        default=5000,
        help="images of the set whose first batch is timed (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="fresh processes for the first batch (default: %(default)s)",
    )
    parser.add_argument(
        "--one",
        choices=("epochs", "first-batch"),
        help="run one part here, and print one line of JSON",
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epochs, arguments.rounds, arguments.first_images = 20, 2, 500
    return arguments


def _run(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    numbers = [
        "--epochs",
        str(arguments.epochs),
        "--images",
        str(arguments.images),
        "--first-images",
        str(arguments.first_images),
    ]
    return harness.fresh(__file__, "--one", part, *numbers, *harness.passed_on(arguments))


def _config(root: Path) -> dict[str, Any]:
    return {"data": {"source": "folder", "root": str(root)}, "pipeline": "affine"}


# --- epochs


def epochs(arguments: argparse.Namespace) -> dict[str, Any]:
    """rss_mib: MiB after every epoch; held_mib: after every tenth, without freed memory; and what
    becomes of them.
    """
    import gpupipe
    from gpupipe.bench.memory import PeakMemory
    from gpupipe.runtime.malloc import malloc_trim

    rss: list[float] = []
    held: dict[int, float] = {}
    config = _config(photos.lfw_like(arguments.data, arguments.images))
    with (
        PeakMemory() as memory,
        gpupipe.load(config, batch_size=_EPOCHS_BATCH, device="cpu") as loader,
    ):
        for epoch in range(arguments.epochs):
            images = sum(len(batch["label"]) for batch in loader)
            assert images == arguments.images, (
                f"epoch {epoch + 1} delivered {images} images instead of {arguments.images}"
            )
            rss.append(resident_mib())
            if len(rss) % 10 == 0:
                malloc_trim()
                held[len(rss)] = resident_mib()
    return {
        "images": arguments.images,
        "batch_size": _EPOCHS_BATCH,
        "rss_mib": rss,
        "held_mib": held,
        "growth_held": list(held.values())[-1] / held[10],
        "growth": rss[-1] / rss[9],
        "growth_of_medians": statistics.median(rss[-10:]) / statistics.median(rss[5:15]),
        **measuring.peak(memory),
    }


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**20


# --- the first batch


def _first_batches(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process to make sure that the index is cached, then the rounds."""
    _run("first-batch", arguments)
    rounds = [_run("first-batch", arguments) for _ in range(arguments.rounds)]
    return {
        "images": arguments.first_images,
        "batch_size": _FIRST_BATCH,
        "median": statistics.median(r["seconds"] for r in rounds),
        "rounds": rounds,
    }


def first_batch(arguments: argparse.Namespace) -> dict[str, Any]:
    """import_seconds: of gpupipe, torch and DALI; seconds: from there to the first batch,
    `load_seconds` of it in gpupipe.load.
    """
    begun = time.perf_counter()
    import torch  # noqa: F401  # timed: its import is not ours

    import gpupipe

    started = time.perf_counter()
    loader = gpupipe.load(
        _config(photos.lfw_like(arguments.data, arguments.first_images)),
        batch_size=_FIRST_BATCH,
        device="cpu",
    )
    loaded = time.perf_counter()
    next(iter(loader))
    return {
        "seconds": time.perf_counter() - started,
        "load_seconds": loaded - started,
        "import_seconds": started - begun,
    }


if __name__ == "__main__":
    main()
