"""Runs one contestant of a comparison, in a process of its own: JSON in, JSON out.

    echo '{"config": "lfw", ...}' | python -m gpupipe.bench.contestant

The input is a Contest as a JSON dict. The last line of the output is a ContestOutcome as a dict, or
{"error": ...}.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpupipe.bench.memory import PSS, PeakMemory
from gpupipe.errors import EngineError, GpupipeError


@dataclass(frozen=True)
class Contest:
    """What one contestant of a comparison must load and time.

    Attributes:
        config: The config's name or path, as for load().
        overrides: KEY=VALUE settings, as for load().
        changes: The settings of the loader that distinguish this contestant.
        cores: The numbers of the cores to run on.
        batches: How many batches to time.
        warm_up: How many batches to leave untimed after the first one; at least an epoch if there
            is a decoded cache, which the first epoch fills.
        cold: Whether to drop the files from the page cache first.
        times_ahead: If the engine prepares n batches ahead, time at least `times_ahead` * n
            batches, even if `batches` is less.
        against: "module:function" of a loader of the user's, which is measured in place of the
            config's; "" for the config's.
    """

    config: str
    overrides: Sequence[str]
    changes: dict[str, Any]
    cores: Sequence[int]
    batches: int
    warm_up: int
    cold: bool
    times_ahead: int = 0
    against: str = ""


@dataclass
class ContestOutcome:
    """The measurements of one contestant in one round.

    Attributes:
        engine: The engine's name.
        device: The engine's device.
        parallelism_with_unit: The engine's threads or workers, in words.
        images: The number of images in the timed batches.
        batches: The number of timed batches.
        seconds: The wall time of the timed batches.
        first_batch_seconds: The wall time from the start of loading to the first batch.
        cpu_seconds: The CPU time of the process and its workers during the timed batches.
        peak_memory: The peak memory of the process and its workers in bytes, from PeakMemory.
        gpu_utilisation: The mean share of time that the GPU ran a kernel, 0 to 1; None on a CPU.
        note: The note of the index, such as "stand-in data, not LFW", or "".
        data: What `measure.describe_loader` returns, and the keys "root", the root of the data set,
            and "steps", the names of the steps.
        others: How many cores other processes kept busy during the timed batches.
        batches_ahead: How many batches the engine prepares before they are requested.
        peak_memory_kind: How peak_memory was measured: PeakMemory.kind.
    """

    engine: str
    device: str
    parallelism_with_unit: str
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
    """Load the config, warm up, and time the batches; raise GpupipeError if that fails."""
    import gpupipe.loader
    from gpupipe import config as configs
    from gpupipe.bench.machine import Load
    from gpupipe.bench.measure import count_images, describe_loader, iter_endlessly, take
    from gpupipe.loading.assembly import resolve

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, contest.cores)
    checked = configs.read(contest.config, contest.overrides, **contest.changes)
    if resolve(checked).reads_data:
        checked = checked.at_epoch(0)  # a server applies its schedules itself
    if contest.cold:
        drop_from_page_cache(checked.source.index())
    started = time.perf_counter()
    with PeakMemory() as memory, gpupipe.loader.open_loader(checked) as loader:
        counts = map(count_images, iter_endlessly(loader))
        take(counts, loader, 1)
        first = time.perf_counter() - started
        traits = loader.engine.traits
        ahead = traits.batches_ahead
        filling = len(loader) if checked.source.cache_decoded else 0
        # Use up the batches that were prepared ahead, and those prepared while these are taken.
        take(counts, loader, max(contest.warm_up, 2 * ahead, filling))
        batches = max(contest.batches, contest.times_ahead * ahead)
        with Load(loader.engine.device) as load:
            images, seconds = take(counts, loader, batches)
        memory.stop()
        return ContestOutcome(
            engine=loader.engine.name,
            device=loader.engine.device,
            parallelism_with_unit=traits.parallelism_with_unit,
            images=images,
            batches=batches,
            seconds=seconds,
            first_batch_seconds=first,
            cpu_seconds=load.cpu_seconds,
            peak_memory=memory.bytes,
            gpu_utilisation=load.gpu,
            note=loader.index.note,
            data=describe_loader(loader)
            | {"root": loader.index.root, "steps": [e.key for e in checked.pipeline.entries]},
            others=load.others,
            batches_ahead=ahead,
            peak_memory_kind=memory.kind,
        )


def drop_from_page_cache(index: Any) -> None:
    """Drop the files of a data set from the page cache; raise EngineError if that is impossible."""
    if not hasattr(os, "posix_fadvise"):
        raise EngineError("--cold needs posix_fadvise, which this system does not have")
    column = index.columns[index.main]
    paths = {span.path for i in range(len(index)) if (span := column.span(i)) is not None}
    if not paths:
        raise EngineError(f"--cold needs samples in local files, not in a {type(column).__name__}")
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.fdatasync(file)  # dirty pages would stay in the cache
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def main(measure: Callable[[Contest], ContestOutcome | None] = run) -> None:
    """Read a contest from standard input, and print its outcome, if any, as the last line."""
    contest = Contest(**json.load(sys.stdin))
    try:
        outcome = measure(contest)
        answer = {} if outcome is None else asdict(outcome)
    except GpupipeError as e:
        answer = {"error": str(e)}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
