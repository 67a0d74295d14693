"""One batch in flight: four stages, each of which begins when the stage before it has ended.

    read      all threads of the pool, in parts of at most 128 samples
    lower     one thread, after the reads of later batches that are queued already: so one thread
              lowers one batch after the other, while the code is still in the processor's caches
    run       all threads, in parts of 8 samples or more; of 1 if no field has a native program, or
              if a function of the user's may take seconds
    deliver   the thread that ran the last part; it runs the batch stage and sets `outcome`

If a sample fails, the later stages leave it out. If a stage itself fails, the whole batch fails.
`outcome` is set in any case: otherwise the consumer would wait forever.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from gpupipe.annotations.batch_annotations import VALUES, BatchAnnotations
from gpupipe.dataset.mapped_files import MappedFiles
from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.chain import DecoderChain
from gpupipe.engines.base import Batch, Job
from gpupipe.engines.cpu.batch_results import BatchResult, CopiedFields, Outcome, RunFailures
from gpupipe.engines.cpu.lowering import Outputs, StepLowering
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.program import FieldProgram
from gpupipe.engines.cpu.sample_reader import SampleReader
from gpupipe.engines.cpu.samples import SampleRunner
from gpupipe.engines.cpu.threads import ThreadPool
from gpupipe.engines.cpu.unequal_buffer import UnequalBuffer
from gpupipe.errors import EngineError, GpupipeError, StepError, describe_error, name_error
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.pipeline.user_calls import list_calls
from gpupipe.runtime import tracing
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.runtime.failures import machine_failure
from gpupipe.sampling.sampler import Plan

_MAX_READ, _MIN_RUN = 128, 8
"""The maximum number of samples that one call reads, and the minimum that one call runs. What
Python does for a call costs as much as for several samples, and more after the caches were used for
pixels."""
_BEFORE_ALL = -1
"""Stands in place of a row for the whole batch: all its rows come after it."""


@dataclass(frozen=True)
class BatchStarter:
    """Starts batches, and holds the objects that all batches of a job share.

    Attributes:
        job: The samples, steps and settings of the loader.
        phases: The lowered steps of each phase: a span of epochs in which no schedule changes a
            step.
        threads: The threads that run the samples.
        decoders: The decoders of image files.
        memory: The pool that allocates batches; None if nothing is delivered.
        cache: The decoded cache, or None.
        start_copy: Queues the copies of a batch to a GPU; None leaves batches on the CPU.
        mix: Runs the batch stage on a result without failed samples; None leaves it to others.
        maps: The mapped files of each field that is read from maps, by field.
        reads_only: Whether to read the samples and do nothing else.
        pad_to: Deliver images that may differ in size in one padded tensor, whose sides are
            multiples of this number; None leaves the padding to others.
    """

    job: Job
    phases: Sequence[StepLowering]
    threads: ThreadPool
    decoders: DecoderChain
    memory: BatchMemory | None
    cache: DecodedCache | None
    start_copy: Callable[[Mapping[str, torch.Tensor]], CopiedFields] | None
    maps: Mapping[str, MappedFiles]
    reads_only: bool = False
    pad_to: int | None = None
    mix: Callable[[Plan, BatchResult], Batch] | None = None

    def start(self, plan: Plan, failures: RunFailures | None = None) -> "BatchInFlight":
        """Start to read and transform the samples of a plan; return the batch in flight.

        Args:
            plan: The plan.
            failures: The failures of the run, whose batches are started in order.
        """
        reader = self._readers[self.job.pipeline.phase_of(plan.epoch)]
        return BatchInFlight(self, reader, plan, failures or RunFailures())

    @cached_property
    def calls_functions(self) -> bool:
        """Whether the steps call functions of the user's."""
        return bool(list_calls(self.job.pipeline))

    @cached_property
    def _readers(self) -> Sequence[SampleReader]:
        """The reader of the samples of each phase."""
        shared = self.decoders, self.cache, self.reads_only, self.maps
        return [SampleReader(phase, *shared) for phase in self.phases]


class BatchInFlight:
    """A batch whose samples the thread pool reads and transforms.

    Attributes:
        plan: The plan of the batch.
        outcome: The BatchResult; or an EngineError or StepError if the whole batch fails. If only
            some samples fail, the BatchResult lists them.
    """

    def __init__(
        self, starter: BatchStarter, reader: SampleReader, plan: Plan, failures: RunFailures
    ) -> None:
        self.plan = plan
        self.outcome = Outcome()
        self._starter, self._reader, self._lowering = starter, reader, reader.lowering
        self._is_cancelled = False
        self._run, self._number = failures, failures.num_started
        failures.num_started += 1
        self._samples = reader.begin(plan.ids)
        """The samples of each field, by their position in the plan, and from `run` on by slot."""
        self._failed: dict[int, str] = {}
        self._errors: dict[int, Exception] = {}
        self._rows: Sequence[int] = ()
        """The positions in the plan of the samples that have a slot in the batch, in order."""
        self._outputs: Outputs = {}
        self._runner: SampleRunner | None = None
        self._annotations: BatchAnnotations | None = None
        self._key = f"{plan.epoch}:{plan.end}"
        tracing.begin("batch in flight", self._key)
        parts = self._split(len(plan.ids), 1, _MAX_READ)
        self._share_out(parts, self._read_part, self._begin_lowering)

    def cancel(self) -> None:
        """Skip all samples that have not started. `outcome` is set when the running samples end."""
        self._is_cancelled = True
        if (runner := self._runner) is not None:
            runner.cancel()

    def _share_out(
        self, parts: Sequence[range], run: Callable[[range], None], then: Callable[[], None]
    ) -> None:
        """Share the calls `run(part)` out among the threads; then call `then()`, the next stage.

        If `run` or `then` raises, the batch fails: otherwise the consumer would wait forever.
        """

        def begin_next(error: BaseException | None = None) -> None:
            try:
                if error is not None:
                    raise error
                then()
            except (GpupipeError, SampleIncompatibleError) as e:
                self._run.record(self._number, _BEFORE_ALL)
                self.outcome.set(e)
            except BaseException as e:  # SystemExit, too: it would end the consumer silently
                failure = EngineError(machine_failure(e) or _describe_failure(e))
                failure.__cause__ = e
                self._run.record(self._number, _BEFORE_ALL)
                self.outcome.set(failure)

        if parts:
            self._starter.threads.parallel_for(parts, run, begin_next)
        else:
            begin_next()

    def _split(self, count: int, min_part: int, max_part: int) -> list[range]:
        """Split range(count) into about two parts a thread, of `min_part` to `max_part` rows each.

        One thread alone gets one part, if `max_part` allows it.
        """
        threads = self._starter.threads.count
        parts = 1 if threads == 1 else 2 * threads
        part = min(max_part, max(min_part, -(-count // parts)))
        return [range(n, min(n + part, count)) for n in range(0, count, part)]

    def _on_error(self, row: int, error: Exception) -> None:
        """Record that the sample in `row` failed; for some errors, that the whole batch fails."""
        is_sample = isinstance(error, (OSError, RuntimeError, ValueError, MemoryError))
        if isinstance(error, StepError):
            index = self._lowering.job.index
            self._errors[row] = error.at_sample(index.location(int(self.plan.ids[row])))
        elif isinstance(error, GpupipeError) or not is_sample:
            self._errors[row] = error
        elif failure := machine_failure(error):
            self._errors[row] = EngineError(failure)
        else:
            self._failed[row] = describe_error(error)
        if row in self._errors:
            self._run.record(self._number, row)

    def _is_skipped(self, row: int = _BEFORE_ALL) -> bool:
        """Return whether the samples from `row` on need not run."""
        return self._is_cancelled or self._run.is_before(self._number, row)

    def _read_part(self, rows: range) -> None:
        if self._is_skipped(rows[0]):
            return
        with tracing.span("read", "loader", batch=self._key, rows=[rows[0], rows[-1]]):
            ids = self.plan.ids[rows[0] : rows[-1] + 1]
            self._reader.read(self._samples, rows, ids, self._on_error)

    def _begin_lowering(self) -> None:
        self._share_out([range(len(self.plan.ids))], self._lower, self._begin_run)

    def _begin_run(self) -> None:
        parts: list[range] = []
        if self._runner is not None:
            count = len(self._rows)
            is_short = self._runner.native and not self._starter.calls_functions
            parts = self._split(count, _MIN_RUN, count) if is_short else self._split(count, 1, 1)
        self._share_out(parts, self._run_part, self._deliver)

    def _lower(self, rows: range) -> None:
        with tracing.span("compute parameters", "loader", batch=self._key):
            self._rows = self._leave_out_failed(rows)
            if self._starter.reads_only or self._errors or self._is_skipped():
                return
            try:
                programs = self._lower_rows(self._rows)
            except SampleIncompatibleError:
                self._rows = [row for row in self._rows if self._passes_alone(row)]
                programs = self._lower_rows(self._rows)
            self._samples = {name: s.select(self._rows) for name, s in self._samples.items()}
            self._runner = SampleRunner(
                pipeline=self._lowering.job.pipeline,
                programs=programs,
                samples=self._samples,
                open=self._reader.open,
                cache=self._starter.cache,
                on_error=lambda n, error: self._on_error(self._rows[n], error),
                is_skipped=lambda n: self._is_skipped(self._rows[n]),
                key=self._key,
            )

    def _leave_out_failed(self, rows: Sequence[int]) -> Sequence[int]:
        return [row for row in rows if row not in self._failed] if self._failed else rows

    def _passes_alone(self, row: int) -> bool:
        """Return whether the steps accept a sample by itself; if not, record the reason."""
        try:
            self._lower_rows([row])
        except SampleIncompatibleError as e:
            self._on_error(row, e)
            return False
        return True

    def _lower_rows(self, rows: Sequence[int]) -> Mapping[str, FieldProgram]:
        """Create the output buffers for the samples in `rows`; return their programs, by field."""
        if not rows:
            return {}
        is_all = len(rows) == len(self.plan.ids)
        sizes = {n: s.sizes if is_all else s.sizes[[*rows]] for n, s in self._samples.items()}
        self._outputs = self._lowering.create_outputs(
            len(rows), self._starter.memory, self._starter.pad_to
        )
        orientations = {
            name: self._samples[name].find_orientations(rows)
            for name in self._lowering.job.pipeline.annotated
        }
        plan = self.plan if is_all else self.plan.select([*rows])
        plan = self._lowering.job.annotate(plan, sizes, orientations)
        self._annotations = plan.annotations
        return self._lowering.lower(plan, sizes, self._outputs)

    def _run_part(self, part: range) -> None:
        assert self._runner is not None
        self._runner.run(part)

    def _deliver(self) -> None:
        tracing.end("batch in flight", self._key)
        # Before an error is raised: its traceback refers to this batch.
        outputs, self._outputs = self._outputs, {}
        self._samples, self._runner = {}, None
        if self._errors:
            raise self._errors[min(self._errors)]
        result = BatchResult()
        passed: Sequence[int] = range(len(self._rows))
        if self._failed:
            result.failed = dict(sorted(self._failed.items()))
            passed = [n for n in passed if self._rows[n] not in self._failed]
        if outputs and not self._is_skipped():
            may_differ = self._lowering.job.loader.shapes != "equal"
            if may_differ or not _have_one_shape(outputs, passed):
                result.shapes = {name: o.list_shapes(passed) for name, o in outputs.items()}
            if passed and (may_differ or not result.shapes) and self._starter.memory is not None:
                result.fields = dict(_take(name, o, passed) for name, o in outputs.items())
                result.annotations = self._annotations
                if self._annotations is not None and len(passed) < len(self._rows):
                    result.annotations = self._annotations.select(passed)
                if self._starter.start_copy is not None:
                    result.on_gpu = self._starter.start_copy(result.fields)
                if self._starter.mix is not None and not self._failed:
                    with tracing.span("batch stage", "loader", batch=self._key):
                        result.batch = self._starter.mix(self.plan, result)
                    outputs, result.fields = {}, {}  # their memory is free for the next batch
        self.outcome.set(result)


def _have_one_shape(outputs: Outputs, rows: Sequence[int]) -> bool:
    buffers = outputs.values()
    return all(isinstance(b, OutputBuffer) and b.have_one_shape(rows) for b in buffers)


def _take(
    name: str, output: OutputBuffer | UnequalBuffer, rows: Sequence[int]
) -> tuple[str, torch.Tensor]:
    """Return the samples of a field, and their name in a batch."""
    is_tensor = isinstance(output, OutputBuffer) or output.is_padded(rows)
    return name if is_tensor else name + VALUES, output.take(rows)


def _describe_failure(error: BaseException) -> str:
    """Return what failed a batch, with the line of the code that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = f"{frame.filename}:{frame.lineno}"
    return f"engine: cpu could not make a batch: {name_error(error)} at {line}"
