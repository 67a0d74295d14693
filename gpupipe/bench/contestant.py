"""One side of a comparison, in a process of its own: JSON in, JSON out.

    echo '{"config": "lfw", ...}' | python -m gpupipe.bench.contestant

What goes in is Contest.as_json; what comes out, in the last line, is Outcome as a dict, or
{"error": ...}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gpupipe.bench.memory import PSS, PeakMemory

if TYPE_CHECKING:
    from gpupipe.loader import Loader


@dataclass(frozen=True)
class Contest:
    """What a contestant has to do. config, overrides: as for load(); changes: what makes it this
    contestant.

    cores: numbers of the cores to stay on. cold: drop the files from the page cache first.
    times_ahead: time at least so many times the batches that are made ahead, whatever `batches` is.
    """

    config: str
    overrides: tuple[str, ...]
    changes: dict[str, Any]
    cores: tuple[int, ...]
    batches: int
    warm_up: int
    cold: bool
    times_ahead: int = 0


@dataclass
class ContestOutcome:
    """What it did. Seconds of wall time; memory in bytes, as PeakMemory has it, of the process and
    its workers; gpu_utilisation: mean share of time, 0 to 1. others: cores that other processes
    kept busy meanwhile. batches_ahead: that are made before they are asked for.
    """

    engine: str
    device: str
    crew: str
    images: int
    batches: int
    seconds: float
    first_batch_seconds: float
    cpu_seconds: float
    peak_memory: int
    gpu_utilisation: float | None = None
    note: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    others: float = 0.0
    batches_ahead: int = 0
    peak_memory_kind: str = PSS


def run(contest: Contest) -> ContestOutcome:
    """Load, warm up, and time `batches` batches. Raises GpupipeError."""
    import gpupipe.loader
    from gpupipe import config as configs
    from gpupipe.bench.gpu import Utilisation
    from gpupipe.bench.machine import Company
    from gpupipe.bench.measure import endless

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, contest.cores)
    checked = configs.read(contest.config, contest.overrides, **contest.changes)
    gpupipe.loader.import_engine(checked.loader.engine)
    if contest.cold:
        forget(checked.source.index())
    started = time.perf_counter()
    with PeakMemory() as memory, gpupipe.loader.quietly(checked) as loader:
        stream = endless(loader)
        _take(stream, 1, loader)
        first = time.perf_counter() - started
        ahead = loader.engine.batches_ahead
        _take(stream, max(contest.warm_up, ahead), loader)
        batches = max(contest.batches, contest.times_ahead * ahead)
        with Utilisation(loader.engine.device) as utilisation, Company() as company:
            started = time.perf_counter()
            images = _take(stream, batches, loader)
            seconds = time.perf_counter() - started
        data = {
            "root": loader.index.root,
            "images": len(loader.index),
            "pipeline": checked.pipeline.name,
        }
        memory.stop()
        data |= {
            "batch_size": checked.loader.batch_size,
            "steps": [e.key for e in checked.pipeline.entries],
        }
        return ContestOutcome(
            loader.engine.name,
            loader.engine.device,
            loader.engine.crew,
            images,
            batches,
            seconds,
            first,
            company.cpu_seconds,
            memory.bytes,
            utilisation.mean,
            loader.index.note,
            data,
            company.cores,
            ahead,
            memory.kind,
        )


def _take(stream: Any, count: int, loader: Loader) -> int:
    """Images in the next `count` batches, waited for on their device."""
    from gpupipe.bench.measure import image_of, synchronise

    images = sum(len(image_of(next(stream))) for _ in range(count))
    synchronise(loader)
    return images


def forget(index: Any) -> None:
    """Drop the files of a data set from the page cache.

    Raises EngineError where the system cannot.
    """
    if not hasattr(os, "posix_fadvise"):
        from gpupipe.errors import EngineError

        raise EngineError("--cold needs posix_fadvise, which this system does not have")
    for path in {index.span(i).path for i in range(len(index))}:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.fdatasync(file)  # pages that are not on the disk yet would stay
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def main() -> None:
    """Read a contest, and print its outcome as the last line."""
    from gpupipe.errors import GpupipeError

    given = json.load(sys.stdin)
    contest = Contest(
        **given | {"overrides": tuple(given["overrides"]), "cores": tuple(given["cores"])}
    )
    try:
        found = asdict(run(contest))
    except GpupipeError as e:
        found = {"error": str(e)}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
