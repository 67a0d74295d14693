"""Measures how fast a loader is, in timed passes over it."""

import itertools
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpupipe.bench.machine import cpu_seconds, machine, synchronise, used_gpu_memory
from gpupipe.bench.memory import OWN_PEAKS, PeakMemory
from gpupipe.engines.bad_samples import list_skipped
from gpupipe.errors import counted
from gpupipe.loader import Loader

SCHEMA = 1
_WARM_UP_BATCHES = 50
_SIZES_LOOKED_AT = 2000
_BATCHES_BETWEEN_LOOKS = 16
_MIN_TIMES_AHEAD, _ENOUGH_TIMES_AHEAD = 2, 4
"""The minimum and the advised length of a pass, in multiples of the batches prepared ahead. In a
shorter pass, most batches were prepared before it began, so it measures no rate.
"""

Tick = Callable[[str, int, int], None]
"""Called with a description of the work, the amount of it that is done, and the total."""


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of values; None for a single one."""
    return statistics.stdev(values) if len(values) > 1 else None


class Rates(ABC):
    """The base of results that have several rates, each in images per second."""

    @property
    @abstractmethod
    def rates(self) -> list[float]:
        """One rate for each round or pass."""

    @property
    def mean(self) -> float:
        """The mean of the rates."""
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the rates; None for a single one."""
        return deviation(self.rates)

    def rates_as_json(self, name: str) -> dict[str, Any]:
        """Return mean, standard deviation and, below the key `name`, all rates, as plain JSON."""
        return {"mean": self.mean, "standard_deviation": self.deviation, name: self.rates}


@dataclass(frozen=True)
class Pass:
    """One timed pass over a loader: images and batches delivered, wall seconds, CPU seconds."""

    images: int
    batches: int
    seconds: float
    cpu_seconds: float


@dataclass
class Measurement(Rates):
    """The results of `gpupipe run`.

    Attributes:
        first_batch_seconds: The wall time from the start of loading to the first batch.
        passes: The timed passes.
        mean_file_bytes: The mean size of an image file, 0 if it is unknown.
        peak_memory: The peak memory of this process and its children in bytes, from PeakMemory.
        peak_memory_kind: How peak_memory was measured: PeakMemory.kind.
        peak_gpu_memory: The peak memory of all processes on the GPU in bytes; None on a CPU.
        skipped: How many samples could not be read.
        interrupted: Whether Ctrl-C ended the measurement.
        batches_ahead: How many batches the engine prepares before they are requested.
    """

    first_batch_seconds: float
    passes: list[Pass] = field(default_factory=list)
    mean_file_bytes: float = 0.0
    peak_memory: int = 0
    peak_memory_kind: str = OWN_PEAKS
    peak_gpu_memory: int | None = None
    skipped: int = 0
    interrupted: bool = False
    batches_ahead: int = 0

    @property
    def too_short(self) -> str:
        """Why the passes are too short to measure a rate, with advice; "" if they are not."""
        batches = min((p.batches for p in self.passes), default=0)
        if not batches or batches >= _MIN_TIMES_AHEAD * self.batches_ahead:
            return ""
        enough = _ENOUGH_TIMES_AHEAD * self.batches_ahead
        return (
            f"a pass has {counted(batches, 'batch', 'batches')}, and {self.batches_ahead:,} are "
            f"made ahead: --batches {enough} or more tells it"
        )

    @property
    def rates(self) -> list[float]:
        return [p.images / p.seconds for p in self.passes]

    @property
    def input_megabytes_a_second(self) -> float:
        """Image files read, in megabytes (10**6 bytes) per second."""
        return self.mean * self.mean_file_bytes / 1e6

    @property
    def cpu_seconds_per_thousand(self) -> float:
        """CPU seconds of this process and its children per 1,000 images."""
        return 1000 * sum(p.cpu_seconds for p in self.passes) / sum(p.images for p in self.passes)

    def as_json(self, loader: Loader) -> dict[str, Any]:
        """Return the results, and descriptions of the loader and the machine, as plain JSON."""
        derived: dict[str, Any] = {}
        if self.too_short:
            derived = {"images_per_second": None, "too_short": self.too_short}
        elif self.passes:
            derived = {
                "images_per_second": self.rates_as_json("passes"),
                "input_megabytes_per_second": self.input_megabytes_a_second,
                "cpu_seconds_per_1000_images": self.cpu_seconds_per_thousand,
            }
        return {
            "schema": SCHEMA,
            "machine": machine(),
            "what": describe_loader(loader),
            **derived,
            **asdict(self),
        }


def describe_loader(loader: Loader) -> dict[str, Any]:
    """Return a loader's data, pipeline, engine, device, threads and batch size, as plain JSON."""
    options, traits = loader.config.loader, loader.engine.traits
    return {
        "config": loader.config.name,
        "data": loader.index.root,
        "note": loader.index.note,
        "images": len(loader.index),
        "classes": len(loader.index.classes),
        "pipeline": loader.config.pipeline.name,
        "batch_stage": [entry.key for entry in loader.mixer.stage.entries],
        "engine": loader.engine.name,
        "device": loader.engine.device,
        "parallelism_with_unit": traits.parallelism_with_unit,
        "parallelism": traits.parallelism,
        "parallelism_setting": traits.parallelism_setting,
        "batch_size": options.batch_size,
        "shard": options.shard.model_dump(),
    }


class Meter:
    """Times passes over a loader, after a warm-up of up to 50 batches.

    With a decoded cache, the warm-up is a whole epoch, which fills the cache. The meter holds no
    reference to a batch, so that the engine can reuse the batch's memory.

    Args:
        loader: The loader to time.
        started: When loading began, by time.perf_counter().
        tick: Called after each batch, with the images so far, and the images of the whole pass.
        look: Called with the loader and its first batch.

    Attributes:
        result: The measurements so far.
    """

    def __init__(
        self, loader: Loader, started: float, tick: Tick, look: Callable[[Loader, Any], None]
    ) -> None:
        self._loader, self._tick = loader, tick
        self.result = Measurement(
            first_batch_seconds=0.0,
            peak_gpu_memory=used_gpu_memory(loader),
            batches_ahead=loader.engine.traits.batches_ahead,
        )
        fills = loader.config.source.cache_decoded is not None
        limit = len(loader) if fills else min(_WARM_UP_BATCHES, len(loader))
        for number, batch in enumerate(self._iter_batches("warm-up", limit)):
            if number == 0:
                self.result.first_batch_seconds = time.perf_counter() - started
                look(loader, batch)

    def epochs(self) -> int:
        """Return how many epochs a pass needs for four times as many batches as are made ahead."""
        return max(1, -(-_ENOUGH_TIMES_AHEAD * self.result.batches_ahead // len(self._loader)))

    def run(self, name: str, batches: int) -> None:
        """Time one pass of `batches` batches, over as many epochs as that takes."""
        cpu = cpu_seconds()
        counts = map(count_images, self._iter_batches(name, batches))
        images, seconds = take(counts, self._loader, batches)
        self.result.passes.append(Pass(images, batches, seconds, cpu_seconds() - cpu))

    def finish(self, memory: PeakMemory) -> Measurement:
        """Add file size, peak memory and skipped samples to the results, and return them.

        Args:
            memory: A PeakMemory that was entered before the loader was created.
        """
        self.result.mean_file_bytes = _mean_file_bytes(self._loader)
        memory.stop()
        self.result.peak_memory, self.result.peak_memory_kind = memory.bytes, memory.kind
        self.result.skipped = len(list_skipped(self._loader.engine))
        return self.result

    def _iter_batches(self, name: str, count: int) -> Iterator[Any]:
        """Yield `count` batches for the pass `name`; sample the GPU memory every 16 batches."""
        images = 0
        for number, batch in enumerate(itertools.islice(iter_endlessly(self._loader), count), 1):
            images += count_images(batch)
            self._tick(name, images, count * self._loader.config.loader.batch_size)
            if number % _BATCHES_BETWEEN_LOOKS == 0 and self.result.peak_gpu_memory is not None:
                used = used_gpu_memory(self._loader) or 0
                self.result.peak_gpu_memory = max(self.result.peak_gpu_memory, used)
            yield batch


def take(
    counts: Iterator[int], loader: Loader, batches: int = 0, seconds: float = 0.0
) -> tuple[int, float]:
    """Take batches, wait for the GPU, and return the number of images and the seconds elapsed.

    Args:
        counts: An iterator that loads the next batch, and yields the number of images in it.
        loader: The loader that delivers the batches.
        batches: How many batches to take at least.
        seconds: How long to take batches at least.
    """
    started, images, taken = time.perf_counter(), 0, 0
    while taken < batches or time.perf_counter() - started < seconds:
        images += next(counts)
        taken += 1
    synchronise(loader)
    return images, time.perf_counter() - started


def take_turns(names: Sequence[str], rounds: int, tick: Tick) -> Iterator[int]:
    """Yield the index of each contestant in turn, round after round; call `tick` before each."""
    total = rounds * len(names)
    for number in range(total):
        turn, index = divmod(number, len(names))
        tick(f"round {turn + 1} of {rounds}: {names[index]}", number, total)
        yield index
    tick("", total, total)


def iter_endlessly(loader: Loader) -> Generator[Any, None, None]:
    """Yield the batches of one epoch after another, without end."""
    while True:
        yield from loader


def image_of(batch: Any) -> Any:
    """Return the main field of a batch, the first of its dict or tuple.

    What a collate function makes may be neither: then it is the batch itself.
    """
    if isinstance(batch, Mapping):
        return next(iter(batch.values()))
    return batch[0] if isinstance(batch, tuple) else batch


def count_images(batch: Any) -> int:
    """Return the number of images in a batch."""
    return len(image_of(batch))


def _mean_file_bytes(loader: Loader) -> float:
    """Return the mean size of fewer than 4,000 files, spread evenly over the data set.

    0 with a decoded cache: it is not known which files were read.
    """
    if loader.config.source.cache_decoded is not None:
        return 0.0
    step = max(1, len(loader.index) // _SIZES_LOOKED_AT)
    column = loader.index.columns[loader.index.main]
    sizes = []
    for i in range(0, len(loader.index), step):
        try:
            size = column.read_ends(i, 0, 0)[2]
            if size > 0:  # a growing cache lists samples that it does not have yet
                sizes.append(size)
        except (OSError, ValueError):
            continue
    return statistics.fmean(sizes) if sizes else 0.0
