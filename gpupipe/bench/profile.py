"""Finds where the time of a loader goes, by timing longer and longer prefixes of its work.

    read -> decode -> flip -> to torch -> batch stage      each stage does all work up to its name

The first stage only reads. Then each stage adds one step. The stage after the last step also
delivers tensors. If the config has a batch stage, it comes last. All stages are timed in turn,
round after round. The cost of a step is the difference between two neighbouring stages in the same
round. It can be negative: a crop lets the decoder decode only its window. If the engine is not
Profilable, the first stage already delivers whole batches.
"""

import statistics
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol, runtime_checkable

from gpupipe.batch_stage.stage import BatchStage
from gpupipe.bench.machine import Load, machine
from gpupipe.bench.measure import (
    Tick,
    count_images,
    describe_loader,
    iter_endlessly,
    take,
    take_turns,
)
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.engines.base import BatchStream, Engine
from gpupipe.errors import EngineError
from gpupipe.loader import Loader, create_loader
from gpupipe.loading.assembly import connect, resolve
from gpupipe.sampling.sampler import Plan

SCHEMA = "gpupipe-profile-1"
READ, DELIVER, WHOLE, RECEIVE = "read", "to torch", "batches", "receive"
BATCH_STAGE = "batch stage"
_WARM_UP_BATCHES = 2
_PATIENCE = 60.0
_MIN_BATCHES = 4
"""The fewest batches to time, per thread or worker."""


@runtime_checkable
class Profilable(Protocol):
    """An engine that can run only a part of its work, for `gpupipe profile`.

    For an engine without these methods, `gpupipe profile` times only whole batches.
    """

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Read the files of the plans and do nothing else.

        Yields:
            For each plan, in order, the number of samples that were read.
        """

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Run all steps of the plans but deliver no batch.

        Without delivery the samples of a batch may differ in size.

        Yields:
            For each plan, in order, the number of samples that passed all steps. Failed samples do
            not count, so it may be 0.
        """


@dataclass
class Stage:
    """The measurements of all work up to and including one step, one number per round.

    Attributes:
        name: The last step of the work; or "read", "to torch", "batches", "receive" or
            "batch stage".
        seconds: Wall seconds per sample.
        cpu_seconds: CPU seconds per sample.
        others: The mean number of cores that other processes kept busy.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Samples per second, the median over rounds."""
        return 1 / statistics.median(self.seconds)

    def costs(self, before: "Stage | None") -> list[float]:
        """Return the wall seconds per sample that this stage adds to `before`, one per round."""
        return _subtract(self.seconds, before.seconds if before else [])

    def cpu_costs(self, before: "Stage | None") -> list[float]:
        """Return the CPU seconds per sample that this stage adds to `before`, one per round."""
        return _subtract(self.cpu_seconds, before.cpu_seconds if before else [])


def _subtract(seconds: list[float], before: list[float]) -> list[float]:
    return [a - b for a, b in zip_longest(seconds, before, fillvalue=0.0)]


@dataclass(frozen=True)
class Profile:
    """How much time each stage of a loader's work takes.

    Attributes:
        what: The description of the loader, from `measure.describe_loader`.
        cores: How many cores the process may use.
        stages: The stages, each containing the work of the one before it.
        gpu_utilisation: How busy the GPU is in the last stage, 0 to 1; None on a CPU.
    """

    what: dict[str, Any]
    cores: int
    stages: list[Stage]
    gpu_utilisation: float | None = None

    @property
    def whole(self) -> Stage:
        return self.stages[-1]

    @property
    def is_by_parts(self) -> bool:
        """Whether the first stage does only a part of the work, as for a Profilable engine."""
        return self.stages[0].name not in (WHOLE, RECEIVE)

    @property
    def is_received(self) -> bool:
        """Whether a server makes the batches."""
        return self.stages[0].name == RECEIVE

    @property
    def pairs(self) -> Iterator[tuple[Stage, Stage | None]]:
        """Each stage with the stage before it; the first one with None."""
        return zip(self.stages, [None, *self.stages[:-1]], strict=True)

    @property
    def busy(self) -> float:
        """The share of the cores' time that the last stage uses, 0 to 1, the median over rounds."""
        times = zip(self.whole.cpu_seconds, self.whole.seconds, strict=True)
        return statistics.median(cpu / wall for cpu, wall in times) / self.cores

    @property
    def disturbed(self) -> float:
        """The largest number of cores that other processes kept busy during a measurement."""
        return max(o for s in self.stages for o in s.others)

    def as_json(self) -> dict[str, Any]:
        """Return all results and the machine, as plain JSON."""
        return {"schema": SCHEMA, "machine": machine(), **asdict(self)}


def measure(
    config: Config, index: Index, cores: int, rounds: int, seconds: float, tick: Tick
) -> Profile:
    """Time each stage of a loader's work for `seconds`, in each of `rounds` rounds.

    Args:
        config: The config to load.
        index: Its samples.
        cores: How many cores the process may use.
        rounds: How many times to time each stage.
        seconds: How long to time a stage in a round.
        tick: Called before each measurement.

    Raises:
        GpupipeError: The loader cannot be created.
        EngineError: No sample passes a stage.
    """
    with create_loader(config, index) as loader:
        stages = [Stage(name) for name in _list_stages(loader.engine, loader.config)]
        what = describe_loader(loader)
    busy: list[float] = []
    for done in take_turns([f"all up to '{stage.name}'" for stage in stages], rounds, tick):
        utilisation = _time(stages[done], done, config, index, seconds)
        if done == len(stages) - 1 and utilisation is not None:
            busy.append(utilisation)
    return Profile(what, cores, stages, statistics.fmean(busy) if busy else None)


def _list_stages(engine: BatchStream, config: Config) -> list[str]:
    """Return the names of the stages that `measure` times, in order."""
    mixing = [BATCH_STAGE] if config.batch.entries else []
    if isinstance(engine, Profilable):
        return [READ, *(e.key for e in config.pipeline.entries), DELIVER, *mixing]
    return [WHOLE if isinstance(engine, Engine) else RECEIVE, *mixing]


def _time(stage: Stage, done: int, config: Config, index: Index, seconds: float) -> float | None:
    """Time one round of the stage at index `done`, and record it; return how busy the GPU was."""
    with _create_loader(stage, done, config, index) as loader:
        engine = loader.engine
        if stage.name in (DELIVER, WHOLE, RECEIVE, BATCH_STAGE):
            counts = (count_images(batch) for batch in iter_endlessly(loader))
        else:
            assert isinstance(engine, Profilable)
            plans = loader.sampler.iter_forever()
            counts = engine.iter_without_delivery(plans) if done else engine.iter_read_only(plans)
        take(counts, loader, _WARM_UP_BATCHES + engine.traits.batches_ahead)
        with Load(engine.device) as load:
            batches = _MIN_BATCHES * engine.traits.parallelism
            samples, elapsed = take(counts, loader, batches, seconds)
        counts.close()
    if not samples:
        raise EngineError(f"no sample gets through '{stage.name}': 'gpupipe run' tells why")
    stage.seconds.append(elapsed / samples)
    stage.cpu_seconds.append(load.cpu_seconds / samples)
    stage.others.append(load.others)
    return load.gpu


def _create_loader(stage: Stage, done: int, config: Config, index: Index) -> Loader:
    """Create the loader that does the work of the stage at index `done`."""
    if stage.name == BATCH_STAGE:
        return create_loader(config, index)
    if stage.name == RECEIVE:
        # The server refuses a config unlike its own: drop the batch stage after connecting.
        parts = connect(resolve(config).engine, config.loader, config, _PATIENCE)
        return Loader(replace(parts, config=replace(parts.config, batch=BatchStage())))
    alone = replace(config, batch=BatchStage())
    if stage.name in (DELIVER, WHOLE):
        return create_loader(alone, index)
    # Only the first steps, in the memory format that costs the engine no copy.
    layout = resolve(config).engine.traits.native_memory_format
    loader = config.loader.model_copy(update={"memory_format": layout, "dtype": None})
    steps = replace(config.pipeline, entries=config.pipeline.entries[: max(1, done)])
    return create_loader(replace(alone, pipeline=steps, loader=loader), index)
