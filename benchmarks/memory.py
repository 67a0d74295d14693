"""Memory over many epochs, how soon the first batch comes, and what a second thread gains.

    python benchmarks/memory.py            # about 3 minutes; writes benchmarks/results/memory.json
    python benchmarks/memory.py --quick    # a check that it runs

Answers: the resident set (/proc/self/statm) after every epoch of 500 LFW-like images through
gpupipe.load on the CPU, and the seconds from the end of the imports to the first batch of 5,000
images with a cached index, in fresh processes (goal: 0.5 s). The peak memory of the same epochs
with `engine: dali` is the limit for `engine: cpu`. Two threads must make 1.85 times the images a
second of one, and the thread that iterates may be busy for 5 % of the time.

A single look at the resident set varies by a tenth with what the C library happens to keep of freed
memory, up as well as down. So after every tenth epoch it is asked to give that back (malloc_trim)
before a second look: what is left is what is held. Goal: at most 5 % more of that after epoch 100
than after the tenth. The plain figures, and medians of ten of them, are given beside it.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import measuring
import photos
import round_statistics

_FIRST_LOOKS = (5, 10)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EPOCHS_BATCH, _FIRST_BATCH = 64, 256
_WARM_EPOCHS, _TIMED_EPOCHS = 2, 6


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(_PARTS[arguments.one](arguments)))
        return
    (
        photos.lfw_like(arguments.data, arguments.images),
        photos.lfw_like(arguments.data, arguments.first_images),
    )
    found = {
        "epochs": _run("epochs", arguments),
        "dali_epochs": _run("epochs", arguments, "--engine", "dali"),
        "first_batch": _first_batches(arguments),
        "threads": _threads(arguments),
    }
    goals = [
        round_statistics.goal(
            "RSS without freed memory, after the last epoch / after the 10th",
            found["epochs"]["growth_held"],
            1.05,
            at_most=True,
        ),
        round_statistics.goal(
            "seconds to the first batch", found["first_batch"]["median"], 0.5, at_most=True
        ),
        round_statistics.goal(
            "peak memory / peak memory with engine: dali",
            found["epochs"]["peak_memory_mib"] / found["dali_epochs"]["peak_memory_mib"],
            1.0,
            at_most=True,
        ),
        round_statistics.goal("images/s with 2 threads / with 1", found["threads"]["gain"], 1.85),
        round_statistics.goal(
            "share of the time in which the main thread is busy",
            found["threads"]["main_thread_share"],
            0.05,
            at_most=True,
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
    harness.add_number(parser, "--epochs", 100, "epochs to run")
    harness.add_number(parser, "--images", 500, "images of an epoch")
    harness.add_number(
        parser, "--first-images", 5000, "images of the set whose first batch is timed"
    )
    harness.add_number(parser, "--rounds", 5, "fresh processes for the first batch")
    parser.add_argument(
        "--engine",
        default="cpu",
        help="the engine of a part that --one runs (default: %(default)s)",
    )
    harness.add_number(parser, "--threads", 2, "the threads of that part")
    parser.add_argument(
        "--one",
        choices=tuple(_PARTS),
        help="run one part here, and print one line of JSON",
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epochs, arguments.rounds, arguments.first_images = 20, 2, 500
    return arguments


def _run(part: str, arguments: argparse.Namespace, *words: str) -> dict[str, Any]:
    numbers = [
        "--epochs",
        str(arguments.epochs),
        "--images",
        str(arguments.images),
        "--first-images",
        str(arguments.first_images),
    ]
    own = ("--one", part, *numbers, *words)
    return harness.fresh(__file__, *own, *harness.passed_on(arguments))


def _config(root: Path) -> dict[str, Any]:
    return {"data": {"source": "folder", "root": str(root)}, "pipeline": "affine"}


# --- epochs


def epochs(arguments: argparse.Namespace) -> dict[str, Any]:
    """rss_mib: MiB after every epoch; held_mib: after every tenth, without freed memory; and what
    becomes of them.
    """
    import gpupipe
    from gpupipe.bench.memory import PeakMemory
    from gpupipe.runtime.memory import malloc_trim

    rss: list[float] = []
    held: dict[int, float] = {}
    config = _config(photos.lfw_like(arguments.data, arguments.images))
    with (
        PeakMemory() as memory,
        gpupipe.load(
            config, batch_size=_EPOCHS_BATCH, device="cpu", engine=arguments.engine
        ) as loader,
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
    """import_seconds: of gpupipe, torch and the engine; seconds: from there to the first batch,
    `load_seconds` of it in gpupipe.load.
    """
    begun = time.perf_counter()
    import torch  # noqa: F401  # timed: its import is not ours

    import gpupipe
    from gpupipe.engines import registry

    registry.find(arguments.engine)

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


# --- threads


def _threads(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds with one thread and with two, in turn."""
    rounds = [
        {n: _run("threads", arguments, "--threads", str(n)) for n in (1, 2)}
        for _ in range(arguments.rounds)
    ]
    gains = [r[2]["images_per_second"] / r[1]["images_per_second"] for r in rounds]
    return {
        "gain": statistics.median(gains),
        "main_thread_share": statistics.median(r[2]["main_thread_share"] for r in rounds),
        "rounds": rounds,
    }


def threads(arguments: argparse.Namespace) -> dict[str, Any]:
    """images_per_second of whole epochs; main_thread_share: how much of the time the thread that
    iterates is busy.
    """
    import gpupipe

    config = _config(photos.lfw_like(arguments.data, arguments.first_images))
    options = {"device": "cpu", "engine": arguments.engine, "threads": arguments.threads}
    with gpupipe.load(config, batch_size=_FIRST_BATCH, **options) as loader:
        for _ in range(_WARM_EPOCHS):  # the last block of batch memory may come in the second
            for _ in loader:
                pass
        started, busy = time.perf_counter(), time.thread_time()
        images = sum(len(batch["label"]) for _ in range(_TIMED_EPOCHS) for batch in loader)
        busy, seconds = time.thread_time() - busy, time.perf_counter() - started
    return {"images_per_second": images / seconds, "main_thread_share": busy / seconds}


_PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "epochs": epochs,
    "first-batch": first_batch,
    "threads": threads,
}

if __name__ == "__main__":
    main()
