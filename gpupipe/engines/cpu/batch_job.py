"""One batch in flight: reads its files, lowers its steps, and runs them sample by sample.

    sweep over the samples   read the fields, some samples at a time, and find  _read
                             the sizes of images
    on the last thread       compute the arguments of all primitives            _lower
    sweep over the samples   run the kernels, some samples at a time; the last  _run
                             writes into the batch
    on the last thread       set the result                                     _finish

Each sweep shares the samples out among all threads. Those of later batches begin while it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column, as_array, read_bytes, read_rows
from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.chain import DecoderChain, EncodedImage
from gpupipe.engines.base import Job
from gpupipe.engines.batch import Shapes
from gpupipe.engines.batch_memory import BatchMemory
from gpupipe.engines.cpu.cached_image import CachedImage, try_to_look_up
from gpupipe.engines.cpu.delivery import Destination
from gpupipe.engines.cpu.gpu_copier import CopiedFields, GpuCopier
from gpupipe.engines.cpu.lowering import StepLowering
from gpupipe.engines.cpu.program import Program
from gpupipe.engines.cpu.sample_runner import SampleRunner
from gpupipe.engines.cpu.threads import ThreadPool
from gpupipe.errors import EngineError, GpupipeError, describe_error
from gpupipe.pipeline.step import SampleIncompatible
from gpupipe.pipeline.tensors import to_steps
from gpupipe.runtime import tracing
from gpupipe.runtime.machine_failures import machine_failure
from gpupipe.sampling.sampler import Plan

_Part = TypeVar("_Part")
_MOST_AT_ONCE = 16


@dataclass
class BatchResult:
    """The result of a batch.

    Attributes:
        fields: Tensors (B, ...) of the samples that passed, by field; empty if there are none, if
            their shapes differ, or if nothing is delivered.
        failed: The reason for each sample that failed, by its position in the plan.
        shapes: Shapes of each sample that passed, in order.
        on_gpu: The fields on the GPU, if there is a copier.
    """

    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    shapes: list[Shapes] = field(default_factory=list)
    on_gpu: CopiedFields | None = None


@dataclass(frozen=True)
class JobStarter:
    """What all batches of a job share.

    Attributes:
        job: The samples, steps and settings of the loader.
        phases: The steps, in each phase of the schedules.
        threads: Run the samples.
        decoders: Decode image files.
        memory: Where the memory of batches comes from; None if nothing is delivered.
        cache: The decoded cache, or None.
        reads_only: Whether nothing is done but read.
        copier: Copies batches to a GPU; None leaves them on the CPU.
    """

    job: Job
    phases: Sequence[StepLowering]
    threads: ThreadPool
    decoders: DecoderChain
    memory: BatchMemory | None
    cache: DecodedCache | None = None
    reads_only: bool = False
    copier: GpuCopier | None = None

    def start(self, plan: Plan) -> BatchJob:
        """Start a batch."""
        return BatchJob(self, self.phases[self.job.pipeline.phase_of(plan.epoch)], plan)


class BatchJob:
    """A batch in flight.

    Attributes:
        plan: The plan of the batch.
        result: The BatchResult. Raises EngineError or StepError if no sample is to blame.
    """

    def __init__(self, starter: JobStarter, lowering: StepLowering, plan: Plan) -> None:
        self.plan = plan
        self.result: Future[BatchResult] = Future()
        self._starter, self._lowering = starter, lowering
        self._is_cancelled = False
        self._contents: dict[int, dict[str, Any]] = {}
        self._failed: dict[int, str] = {}
        self._errors: dict[int, Exception] = {}
        self._runner: SampleRunner | None = None
        self._rows: list[int] = []
        """The positions in the plan of the samples that have a place in the batch, in order."""
        self._destinations: dict[str, Destination] = {}
        self._key = f"{plan.epoch}:{plan.end}"
        tracing.begin("batch in flight", self._key)
        self._sweep(self._share_out(len(plan.ids)), self._read, self._lower)

    def cancel(self) -> None:
        """Let the samples that wait do nothing. `result` comes as soon as the others end."""
        self._is_cancelled = True

    def _share_out(self, count: int) -> list[range]:
        """Return the rows below `count` in parts that run at once, some for each thread."""
        part = min(_MOST_AT_ONCE, -(-count // (2 * self._starter.threads.count)))
        return [range(n, min(n + part, count)) for n in range(0, count, max(part, 1))]

    def _sweep(
        self, parts: Sequence[_Part], work: Callable[[_Part], None], then: Callable[[], None]
    ) -> None:
        """Call `work` for each of the parts on all threads; then `then`. `work` must not raise."""

        def run(n: int) -> None:
            if not self._is_cancelled:
                work(parts[n])

        def end() -> None:
            try:
                then()
            except Exception as e:  # without it the consumer would wait forever
                self.result.set_exception(e)

        self._starter.threads.sweep(len(parts), run, end)

    def _keep(self, row: int, error: Exception) -> None:
        """Keep why a sample failed, or the error that ends the run."""
        is_sample = isinstance(error, (OSError, RuntimeError, ValueError, MemoryError))
        if isinstance(error, GpupipeError) or not is_sample:
            self._errors[row] = error
        elif failure := machine_failure(error):
            self._errors[row] = EngineError(failure)
        else:
            self._failed[row] = describe_error(error)

    def _read(self, rows: range) -> None:
        with tracing.span("read", "loader", batch=self._key, rows=[rows[0], rows[-1]]):
            files = self._read_files(rows)
            for row in rows:
                try:
                    self._contents[row] = self._read_fields(row, files)
                except Exception as e:
                    self._keep(row, e)

    def _read_files(self, rows: range) -> dict[str, dict[int, Any]]:
        """Return what can be read at once, by field and row: bytes of files, or CachedSamples."""
        job, cache = self._lowering.job, self._starter.cache
        ids = self.plan.ids[rows[0] : rows[-1] + 1]
        found = {}
        for name, spec in job.pipeline.fields.items():
            column = job.index.columns[name]
            data: Sequence[Any] | None = None
            if cache is not None and name in cache.beginnings and not self._starter.reads_only:
                data = try_to_look_up(cache, name, column, ids)
            elif spec.encoded and len(rows) > 1:
                data = _try_to_read(column, ids)
            found[name] = dict(zip(rows, data, strict=True)) if data else {}
        return found

    def _read_fields(self, row: int, files: Mapping[str, Mapping[int, Any]]) -> dict[str, Any]:
        job = self._lowering.job
        contents: dict[str, Any] = {}
        for name, spec in job.pipeline.fields.items():
            column, id = job.index.columns[name], int(self.plan.ids[row])
            if not spec.encoded:
                contents[name] = _read_array(column, id, spec.layout)
                continue
            contents[name] = self._read_image(name, column, id, files.get(name, {}).get(row))
        return contents

    def _read_image(self, name: str, column: Column, id: int, data: Any) -> Any:
        """Return the EncodedImage of a sample, its CachedImage, or its bytes if no step decodes it.

        `data` are its bytes, if they have been read, or its CachedSample.
        """
        cache, step = self._starter.cache, self._lowering.decode_step(name)
        if step is None or self._starter.reads_only:
            return torch.from_numpy(read_bytes(column, id, data))
        decoders = self._starter.decoders
        if cache is None or name not in cache.beginnings:
            return decoders.open(read_bytes(column, id, data), step.options)
        (cached,) = cache.look_up(name, column, [id]) if data is None else [data]
        if cached.pixels is not None:
            return CachedImage(cached, None, cached.size)
        file = decoders.open(read_bytes(column, id), step.options)
        return CachedImage(cached, file, file.size)

    def _lower(self) -> None:
        with tracing.span("compute parameters", "loader", batch=self._key):
            self._lower_steps()

    def _lower_steps(self) -> None:
        self._rows = [row for row in range(len(self.plan.ids)) if row not in self._failed]
        if self._starter.reads_only or self._errors or self._is_cancelled:
            self._finish()
            return
        try:
            programs = self._lower_rows(self._rows)
        except SampleIncompatible:
            self._rows = [row for row in self._rows if self._passes_alone(row)]
            programs = self._lower_rows(self._rows)
        self._runner = SampleRunner(
            pipeline=self._lowering.job.pipeline,
            programs=programs,
            cache=self._starter.cache,
            keep=lambda n, error: self._keep(self._rows[n], error),
            is_cancelled=lambda: self._is_cancelled,
            key=self._key,
        )
        count = len(self._rows)
        one_by_one = [range(n, n + 1) for n in range(count)]
        parts = self._share_out(count) if self._runner.prepares else one_by_one
        self._sweep(parts, self._run, self._finish)

    def _passes_alone(self, row: int) -> bool:
        """Return whether the steps take a sample; if not, keep why."""
        try:
            self._lower_rows([row])
        except SampleIncompatible as e:
            self._keep(row, e)
            return False
        return True

    def _lower_rows(self, rows: list[int]) -> Mapping[str, Program]:
        """Return the programs for the samples in `rows`, with places for them in a batch."""
        if not rows:
            return {}
        starter = self._starter
        sizes = {
            name: np.array([self._contents[row][name].size for row in rows], np.float64)
            for name, content in self._contents[rows[0]].items()
            if isinstance(content, EncodedImage | CachedImage)
        }
        self._destinations = {
            name: Destination(len(rows), self._lowering.form(name), starter.memory)
            for name in self._lowering.job.pipeline.outputs
        }
        return self._lowering.lower(self.plan.select(rows), sizes, self._destinations)

    def _run(self, part: range) -> None:
        assert self._runner is not None
        self._runner.run({n: self._contents.pop(self._rows[n]) for n in part})

    def _finish(self) -> None:
        tracing.end("batch in flight", self._key)
        if self._errors:
            raise self._errors[min(self._errors)]
        result = BatchResult(failed=dict(sorted(self._failed.items())))
        passed = [n for n, row in enumerate(self._rows) if row not in self._failed]
        destinations, self._destinations = self._destinations, {}
        self._contents, self._runner = {}, None
        if destinations and not self._is_cancelled:
            result.shapes = [
                {name: d.shapes[n] for name, d in destinations.items()} for n in passed
            ]
            are_equal = all(shapes == result.shapes[0] for shapes in result.shapes)
            if passed and are_equal and self._starter.memory is not None:
                result.fields = {name: d.take(passed) for name, d in destinations.items()}
                if self._starter.copier is not None:
                    result.on_gpu = self._starter.copier.start(result.fields)
        self.result.set_result(result)


def _try_to_read(column: Column, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]] | None:
    """Return the bytes of several rows; None if one of them cannot be read."""
    try:
        return read_rows(column, rows)
    except Exception:  # read_bytes finds the row, and raises
        return None


def _read_array(column: Column, row: int, layout: str) -> torch.Tensor:
    """Return the array of a row with its axes in the order that `Step.torch` gets."""
    assert column.array is not None
    array = as_array(read_bytes(column, row), column.array, row)
    return to_steps(torch.from_numpy(array), layout)
