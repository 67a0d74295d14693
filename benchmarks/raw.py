"""Raw numbers into torch tensors on a CPU: 1 MB float32 samples from the page cache, side by side
with what else there is.

    # about 10 minutes, with nothing beside it; writes benchmarks/results/raw.json
    python benchmarks/raw.py
    python benchmarks/raw.py --quick  # a check that it runs
    python benchmarks/raw.py --one gpupipe  # one contestant, one process, one line of JSON

All deliver float32 (128, 4, 256, 256), in a new order in every epoch; gpupipe, DALI and DataLoader
all shuffle globally. `main_thread` is the share of the time in which the consumer's thread used a
core. With "a busy thread", a thread of pure Python in the same process wants the interpreter all
the time, and `busy_thread` is its speed, as a share of what it is alone; once the consumer takes
all that it can get, and once 700 MB/s, as a training step would. "a busy process" takes as much of
the cores, and no more.
"""

import argparse
import json
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import harness
import measuring
import numpy as np
import round_statistics
from raw_contestants import BATCH, CONTESTANTS, PACED, SHAPE

_BYTES = 4 * 4 * 256 * 256
_WARM_SECONDS = 2.0
_RATE, _MAIN, _BUSY_RATE, _BUSY_SHARE, _OF_DALI = 2.5, 0.25, 0.6, 0.7, 0.9
_ALONE = 2.0
_PACE = 0.7e9


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    made(arguments)
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    size = ["--seconds", str(arguments.seconds), "--samples", str(arguments.samples)]
    rounds = harness.interleaved(
        lambda name: harness.fresh(__file__, "--one", name, *size, *harness.passed_on(arguments)),
        CONTESTANTS,
        arguments.rounds,
        "raw",
    )
    result = {
        "samples": arguments.samples,
        "sample_bytes": _BYTES,
        "batch_size": BATCH,
        "disturbed": round_statistics.disturbed(rounds),
    }
    result |= {"rounds": rounds, "ratios": ratios(rounds), "goals": goals(rounds)}
    path = harness.write("raw", result, arguments)
    round_statistics.print_table(rounds)
    for name, found in rounds.items():
        thread = (
            f", busy thread {round_statistics.median(found, 'busy_thread'):.0%}"
            if "busy_thread" in found[0]
            else ""
        )
        print(
            f"  {name:36}{round_statistics.median(found, 'gigabytes_per_second'):>8.2f} GB/s, main "
            f"thread {round_statistics.median(found, 'main_thread'):.0%}{thread}"
        )
    for name, ratio in result["ratios"].items():
        round_statistics.print_ratio(name, ratio)
    round_statistics.print_goals(result["goals"])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=5, seconds=6.0)
    harness.add_number(parser, "--samples", 1024, "samples of 1 MB")
    parser.add_argument(
        "--one",
        choices=list(CONTESTANTS),
        help="run one contestant here, and print one line of JSON",
    )
    return harness.parsed(parser, samples=256)


def made(arguments: argparse.Namespace) -> Path:
    """The folder with rows.npy and, of the same numbers, a file a sample; made where it is not
    there yet.
    """
    root: Path = arguments.data / f"raw-{arguments.samples}"
    if not (root / "done").exists():
        (root / "one").mkdir(parents=True, exist_ok=True)
        numbers = np.random.default_rng(0).random((arguments.samples, *SHAPE), dtype=np.float32)
        np.save(root / "rows.npy", numbers)
        for n, sample in enumerate(numbers):
            np.save(root / "one" / f"{n:06}.npy", sample)
        (root / "done").touch()
    return root


class Busy:
    """A thread that does nothing but count."""

    def __init__(self) -> None:
        self.count = 0
        threading.Thread(target=self._spin, daemon=True).start()
        before = self.count
        time.sleep(_ALONE)
        self.alone = (self.count - before) / _ALONE
        """Counts a second where nothing else runs."""

    def _spin(self) -> None:
        while True:
            self.count += 1


class Watched:
    """Batches, and of each pass over them: the CPU time of the thread that takes them, the wall
    time, and what a busy thread counted.

    pace: bytes a second at which they are taken, by waiting; None: as they come.
    """

    def __init__(self, batches: Iterable[Any], busy: Busy | None, pace: float | None) -> None:
        self._batches, self._busy, self._pace = batches, busy, pace
        self.passes: list[tuple[float, float, int]] = []

    def __iter__(self) -> Iterator[Any]:
        cpu, started, counted = time.thread_time(), time.perf_counter(), self._counted()
        for number, batch in enumerate(self._batches):
            yield batch
            if self._pace:
                time.sleep(
                    max(
                        0.0,
                        started + (number + 1) * BATCH * _BYTES / self._pace - time.perf_counter(),
                    )
                )
        self.passes.append(
            (time.thread_time() - cpu, time.perf_counter() - started, self._counted() - counted)
        )

    def _counted(self) -> int:
        return 0 if self._busy is None else self._busy.count


def one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What measuring.measure returns, and the GB/s, and the share of the main thread."""
    import torch  # noqa: F401  # before the clock starts

    warnings.simplefilter("ignore")
    busy = Busy() if "busy thread" in name else None
    watched: list[Watched] = []

    def build() -> Watched:
        watched.append(
            Watched(CONTESTANTS[name](made(arguments)), busy, _PACE if name == PACED else None)
        )
        return watched[-1]

    found = measuring.measure(build, _size, arguments.seconds, _WARM_SECONDS)
    counted = watched[0].passes[-len(found["passes"]) :]
    cpu, wall, count = (sum(column) for column in zip(*counted, strict=True))
    found |= {
        "gigabytes_per_second": found["images_per_second"] * _BYTES / 1e9,
        "main_thread": cpu / wall,
    }
    return found | ({} if busy is None else {"busy_thread": count / wall / busy.alone})


def _size(batch: Any) -> int:
    batch = batch[0] if isinstance(batch, list) else batch
    return len(batch["array"] if isinstance(batch, dict) else batch)


def ratios(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Round by round."""
    own, reader = rounds["gpupipe"], rounds["DALI readers.numpy"]
    found = {
        f"beside {what} / alone": round_statistics.ratio(rounds[f"gpupipe, {what}"], own)
        for what in ("a busy thread", "a busy process")
    }
    found |= {
        f"{what} / DALI readers.numpy": round_statistics.ratio(rounds[f"gpupipe, {what}"], reader)
        for what in ("a file a sample", "files mapped anew")
    }
    return found | {
        f"gpupipe / {name}": round_statistics.ratio(own, rounds[name])
        for name in ("DALI readers.numpy", "DataLoader, 2 workers", "pickle over a Queue")
    }


def goals(rounds: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What was aimed at."""
    own, busy, paced, found = (
        rounds["gpupipe"],
        rounds["gpupipe, a busy thread"],
        rounds[PACED],
        ratios(rounds),
    )
    return [
        round_statistics.goal("GB/s", round_statistics.median(own, "gigabytes_per_second"), _RATE),
        round_statistics.goal(
            "share of the main thread",
            round_statistics.median(own, "main_thread"),
            _MAIN,
            at_most=True,
        ),
        round_statistics.goal(
            "GB/s beside a busy thread",
            round_statistics.median(busy, "gigabytes_per_second"),
            _BUSY_RATE,
        ),
        round_statistics.goal(
            "GB/s beside a busy thread, taken at 700 MB/s",
            round_statistics.median(paced, "gigabytes_per_second"),
            _BUSY_RATE,
        ),
        round_statistics.goal(
            "of the busy thread's speed alone, taken at 700 MB/s",
            round_statistics.median(paced, "busy_thread"),
            _BUSY_SHARE,
        ),
        round_statistics.goal(
            "a file a sample / DALI readers.numpy",
            found["a file a sample / DALI readers.numpy"]["median"],
            _OF_DALI,
        ),
    ]


if __name__ == "__main__":
    main()
