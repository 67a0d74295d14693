"""The index: how fast a folder is scanned, and what ten million samples cost on disk, to open, to
shuffle and to plan.

    # about 3 minutes, 3 GB of memory, 1 GB of disk; writes benchmarks/results/index.json
    python benchmarks/index.py
    python benchmarks/index.py --quick  # a check that it runs

Answers: files a second of gpupipe's folder source over 200,000 empty files in 2,000 class folders
(directory entries in the kernel's cache; the whole call: scan, table, fingerprint, saved index),
the same with an index that is cached and still holds; and for a made-up index of 10 million names:
bytes, seconds to open, seconds of an epoch's permutation, microseconds to plan a batch and look up
its paths.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import measuring
import numpy as np
import round_statistics

from gpupipe.bench.memory import PeakMemory
from gpupipe.dataset import index_cache, source
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.dataset.index import Index, build
from gpupipe.sampling import draws
from gpupipe.sampling.sampler import Plan, Sampler

_REPEATS = 5
_PIECE = 500_000
_BATCH = 256
_PLANS = 200
_SETTLE_SECONDS = 2.5
"""The folder source keeps no index of folders that changed in the last two seconds."""


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    arguments.data.mkdir(parents=True, exist_ok=True)
    scan = scanned(made_folder(arguments.data, arguments.files, arguments.classes))
    large = made_up(arguments.data, arguments.samples)
    goals = [
        round_statistics.goal(
            "files scanned a second", scan["files_per_second"]["median"], 150_000
        ),
        round_statistics.goal(
            "GB of the saved index",
            large["bytes"] / 1e9,
            1.0 * arguments.samples / 10_000_000,
            at_most=True,
        ),
        round_statistics.goal(
            "seconds to open it", large["open_seconds"]["median"], 0.1, at_most=True
        ),
    ]
    path = harness.write("index", {"scan": scan, "large": large, "goals": goals}, arguments)
    report(scan, large)
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.options(__doc__)
    harness.add_number(parser, "--files", 200_000, "empty files to scan")
    harness.add_number(parser, "--classes", 2_000, "their folders")
    harness.add_number(parser, "--samples", 10_000_000, "rows of the made-up index")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.files, arguments.classes, arguments.samples = 20_000, 200, 1_000_000
    return arguments


def repeated(work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """Seconds of each of five calls, and their median."""
    rounds = []
    for _ in range(_REPEATS):
        before()
        started = time.perf_counter()
        work()
        rounds.append(time.perf_counter() - started)
    return {"median": statistics.median(rounds), "rounds": rounds}


# --- scanning


def made_folder(data: Path, files: int, classes: int) -> Path:
    """Empty files, named as in ImageNet; made once."""
    target = data / f"empty-{files}-in-{classes}"
    if target.exists():
        return target
    making = target.with_name(f"{target.name}.{os.getpid()}")
    for c in range(classes):
        folder = making / f"n{c:08d}"
        folder.mkdir(parents=True)
        for n in range(c, files, classes):
            (folder / f"n{c:08d}_{n}.JPEG").touch()
    making.rename(target)
    time.sleep(_SETTLE_SECONDS)
    return target


def scanned(root: Path) -> dict[str, Any]:
    """The folder source over `root`: with no cached index, and with one."""
    folder = source.SOURCES.find("folder")(root=root)
    cache = Path(tempfile.mkdtemp(prefix="index-", dir=root.parent))
    os.environ["GPUPIPE_CACHE"] = str(cache)
    try:
        count = len(folder.index())
        fresh = repeated(folder.index, before=lambda: shutil.rmtree(cache))
        cached = repeated(folder.index)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    rates = [count / s for s in fresh["rounds"]]
    return {
        "files": count,
        "files_per_second": {"median": statistics.median(rates), "rounds": rates},
        "seconds": fresh,
        "seconds_when_cached": cached,
    }


# --- ten million


def made_up(data: Path, samples: int) -> dict[str, Any]:
    """An index of `samples` names that stand for nothing: what it costs to make, open and use."""
    path = data / f"made-up-{samples}.idx"
    with PeakMemory() as memory:
        started = time.perf_counter()
        index_cache.save(
            joined([piece(n, min(n + _PIECE, samples)) for n in range(0, samples, _PIECE)]), path
        )
        made_seconds = time.perf_counter() - started
        found = {
            "samples": samples,
            "bytes": path.stat().st_size,
            "build_and_save_seconds": made_seconds,
            "open_seconds": repeated(lambda: index_cache.open_saved(path)),
        }
        opened = index_cache.open_saved(path)
        assert opened is not None
        assert opened.location(samples - 1).endswith(name_of(samples - 1)), (
            "the index in pieces is not the index of the whole"
        )
        found |= used(opened)
    path.unlink()
    return found | measuring.peak(memory)


def name_of(n: int) -> str:
    return f"class_{n // 1000:05d}/img_{n:08d}.jpg"


def piece(start: int, end: int) -> Index:
    rows = range(start, end)
    return build(
        "/data", [name_of(n) for n in rows], np.arange(start, end, dtype=np.int64) // 1000, []
    )


def joined(pieces: list[Index]) -> Index:
    """One index of several, whose fingerprint is made of theirs: it stands for nothing that is
    resumed.
    """
    starts = np.cumsum([0] + [len(p.names.data) for p in pieces[:-1]])
    ends = np.concatenate(
        [p.names.offsets[1:] + start for p, start in zip(pieces, starts, strict=True)]
    )
    names = StringArray.from_ends(np.concatenate([p.names.data for p in pieces]), ends)
    labels = np.concatenate([p.labels for p in pieces])
    classes = [f"class_{c:05d}" for c in range(int(labels[-1]) + 1)]
    fingerprint = hashlib.blake2b(
        "".join(p.fingerprint for p in pieces).encode(), digest_size=16
    ).hexdigest()
    return Index(
        "/data", names, labels, classes, {"image": FileColumn("/data", names)}, fingerprint
    )


def used(index: Index) -> dict[str, Any]:
    """Seconds of a permutation and of beginning an epoch; microseconds to plan a batch, and to look
    up its paths and labels.
    """
    sampler = Sampler(len(index), _BATCH, shuffle=True, seed=0, last_batch="partial")
    shuffle = repeated(lambda: draws.permutation(0, 0, len(index)))
    started = time.perf_counter()
    plans = sampler.begin()
    first = next(plans)
    begun = time.perf_counter() - started
    plan, planned = _microseconds(lambda: list(islice(plans, _PLANS)))
    looked_up, _ = _microseconds(lambda: [_look_up(index, p) for p in [first, *planned[1:]]])
    return {
        "permutation_seconds": shuffle,
        "begin_epoch_seconds": begun,
        "plan_batch_microseconds": plan,
        "look_up_batch_microseconds": looked_up,
        "batch_size": _BATCH,
    }


def _microseconds(work: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    """Of one of the results that `work` makes, and all of them."""
    started = time.perf_counter()
    made = work()
    return (time.perf_counter() - started) / len(made) * 1e6, made


def _look_up(index: Index, plan: Plan) -> tuple[Any, Any]:
    return index.columns["image"].encoded_paths(plan.ids), index.labels[plan.ids]


def report(scan: dict[str, Any], large: dict[str, Any]) -> None:
    print(
        f"{scan['files']:,} files: {scan['files_per_second']['median']:,.0f} a second, "
        f"{scan['seconds']['median']:.2f} s in all;"
    )
    print(
        f"  with the index cached {scan['seconds_when_cached']['median']:.3f} s (medians of "
        f"{_REPEATS})"
    )
    print(
        f"{large['samples']:,} samples: {large['bytes'] / 1e6:,.0f} MB, opened in "
        f"{large['open_seconds']['median'] * 1e3:.1f} ms,"
    )
    print(
        f"  permutation {large['permutation_seconds']['median']:.2f} s, begin of an epoch "
        f"{large['begin_epoch_seconds']:.2f} s,"
    )
    print(
        f"  a batch of {_BATCH}: plan {large['plan_batch_microseconds']:.0f} us, paths and "
        f"labels {large['look_up_batch_microseconds']:.0f} us"
    )


if __name__ == "__main__":
    main()
