"""The CPU engine: runs pipelines on a pool of threads in this process.

1. `batches` starts a BatchInFlight for each plan, `prefetch` of them ahead of the delivered batch.
   A BatchInFlight runs on the thread pool: see batch_in_flight.py.
2. The engine quarantines a sample that fails, and delivers the batch without it.
3. Labels and ids come from the index, and become tensors directly.
4. Closing the generator cancels the batches in flight, and waits for the samples that run.
5. Batches of two epochs may be in flight together. If a schedule changes a step between the epochs,
   each batch uses the step of its own epoch.
6. The memory of a batch returns to its pool when the last tensor over it dies: see BatchMemory.
7. The thread that finishes a batch for the CPU also runs the batch stage, if its steps may run on
   several threads. So the consumer's caches keep its code, and its time is the model's.
8. For a GPU, this memory is page-locked. The thread that finishes a batch queues its copies on a
   separate CUDA stream: see GpuCopier.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import Lock

import torch

from gpupipe.config import LoaderConfig
from gpupipe.dataset.mapped_files import MappedFiles, map_files
from gpupipe.decoded_cache.decoded_cache import DecodedCache, open_decoded_cache
from gpupipe.decoders.chain import AUTO, DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import FileBytes
from gpupipe.engines.bad_samples import Quarantine, QuarantiningEngine
from gpupipe.engines.base import Batch, EngineTraits, Job, Operator
from gpupipe.engines.batch import check_shapes, labels_and_values, shapes_as_tensors
from gpupipe.engines.cpu.batch_in_flight import BatchInFlight, BatchStarter
from gpupipe.engines.cpu.batch_results import BatchResult, CopiedFields, RunFailures
from gpupipe.engines.cpu.lowering import StepLowering
from gpupipe.engines.cpu.threads import ThreadPool
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.spec_checks import is_picture
from gpupipe.pipeline.user_calls import list_calls
from gpupipe.runtime.batch_memory import BatchMemory, new_block, new_pinned_block
from gpupipe.runtime.installation import import_torchvision
from gpupipe.runtime.memory import on_stream, record_stream, to_device
from gpupipe.runtime.tracing import span
from gpupipe.sampling.sampler import Plan, Sampler


class GpuCopier:
    """Copies finished batches to a GPU on a separate CUDA stream, while threads run later batches.

    The thread that finishes a batch queues its copies from page-locked memory, and does not wait.
    The consumer's stream waits for the CUDA event after the copies. The memory of a batch returns
    to the pool only after that event. Otherwise a later batch could overwrite it while the GPU
    still reads it.

    Args:
        gpu: The device to copy to, such as cuda:0.
    """

    def __init__(self, gpu: torch.device) -> None:
        self._gpu = gpu
        self._stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        self._lock = Lock()
        self._sources: deque[tuple[torch.Event, list[torch.Tensor]]] = deque()
        """The tensors from which the stream still copies, and the event after their copies."""

    def start(self, fields: Mapping[str, torch.Tensor]) -> CopiedFields:
        """Queue the copies of a batch, and return them. Any thread may call this method."""
        with on_stream(self._stream):
            tensors = {name: to_device(tensor, self._gpu) for name, tensor in fields.items()}
            done = self._stream.record_event()
        with self._lock:
            self._sources.append((done, list(fields.values())))
        self._drop_copied()
        return tensors, done

    def hand_over(self, copied: CopiedFields) -> Batch:
        """Return the fields on the GPU, and make the current stream wait for their copies."""
        tensors, done = copied
        stream = torch.cuda.current_stream(self._gpu)
        stream.wait_event(done)
        record_stream(tensors, stream)
        self._drop_copied()
        return tensors

    def _drop_copied(self) -> None:
        """Drop the sources whose copies have ended, the oldest first."""
        with self._lock:
            while self._sources and self._sources[0][0].query():
                self._sources.popleft()

    def close(self) -> bool:
        """Wait for the queued copies, and drop the tensors that they read.

        Returns:
            False if the GPU failed. Then the page-locked memory that the GPU used must never be
            freed: torch would record a CUDA event, and the error of that event ends the process.
        """
        try:
            self._stream.synchronize()
        except RuntimeError:  # the error of an earlier call, which close() must not hide
            return False
        self._sources.clear()
        return True


_OF_FAILED_GPUS: list[tuple[GpuCopier, BatchMemory]] = []
"""Page-locked memory of GPUs that failed. It must never be freed; see GpuCopier.close()."""


class CpuEngine(QuarantiningEngine):
    """Runs a job on threads of this process.

    Args:
        job: Samples, steps and settings of the loader.
        device_id: Number of the GPU to which batches are copied; None leaves them on the CPU.

    Raises:
        EngineError: If a step runs neither on this engine's primitives nor in torch, or if the
            import of torchvision fails.
    """

    name = "cpu"
    settings = (
        Sampler.settings
        | Quarantine.settings
        | {"threads", "prefetch", "decoder", "dtype", "memory_format", "shapes"}
    )
    traits = EngineTraits(keeps_decoded=True)

    def __init__(self, job: Job, device_id: int | None) -> None:
        super().__init__(job, device_id)
        self.traits = self.traits.with_counts(job.threads, job.loader.prefetch)
        decoder = job.loader.decoder
        self._cache = open_decoded_cache(
            job.cache_decoded,
            job.index,
            job.pipeline,
            job.max_pixels,
            self.name if decoder == AUTO else f"{self.name} with {decoder}",
        )
        self._phases = _lower_phases(job, self._cache)
        if any(phase.needs_torchvision() for phase in self._phases):
            import_torchvision()
        self._copier = None if device_id is None else GpuCopier(self._torch_device)
        # The batches in flight, the delivered one, and the one before it, which its user may hold
        # until the next arrives, or whose copy to the GPU has not ended.
        spare = (self.traits.batches_ahead + 2) * len(job.pipeline.outputs)
        self._memory = BatchMemory(spare, new_block if device_id is None else new_pinned_block)
        # Threads that wait for processes use no core.
        waiting = sum(call.workers for call in list_calls(job.pipeline))
        self._threads = ThreadPool(job.threads + waiting)
        decoders = DecoderChain(decoder, job.max_pixels)
        self._starter = BatchStarter(
            job=job,
            phases=self._phases,
            threads=self._threads,
            decoders=decoders,
            memory=self._memory,
            cache=self._cache,
            start_copy=None if self._copier is None else self._copier.start,
            maps=_find_maps(job),
        )

    @classmethod
    def can_run(cls, entry: Entry, device: str) -> bool:
        return entry.step.has_torch

    @classmethod
    def find_decoder(cls, loader: LoaderConfig, data: FileBytes, options: DecodeOptions) -> str:
        return DecoderChain(loader.decoder).find_decoder(data, options)

    @classmethod
    def plan_operators(cls, job: Job, separate_files: bool) -> dict[str, list[Operator]]:
        read = ("dataset.columns.read", "cpu", ())
        return {"cpu": [read, *_lower_phases(job)[0].operators()]}

    @classmethod
    def contestants(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, str]]:
        return {"CPU engine": {"device": "gpu:0" if gpus else "cpu"}}

    def mixed_batches(
        self, plans: Iterator[Plan], mix: Callable[[Plan, Batch, BatchMemory], Batch]
    ) -> Generator[tuple[Plan, Batch], None, None]:
        def finish(plan: Plan, result: BatchResult) -> Batch:
            return mix(plan, self._to_batch(plan, result), self._memory)

        starter = replace(self._starter, mix=finish)
        return self._deliver_good(plans, partial(self._batches, starter=starter))

    def padded_batches(
        self, plans: Iterator[Plan], pad_to: int
    ) -> Generator[tuple[Plan, Batch], None, None]:
        starter = replace(self._starter, pad_to=pad_to)
        return self._deliver_good(plans, partial(self._batches, starter=starter))

    def _batches(
        self, plans: Iterator[Plan], starter: BatchStarter | None = None
    ) -> Iterator[tuple[Plan, Batch]]:
        starter = starter or self._starter
        finish = starter.mix or self._to_batch
        for plan, result in self._run(plans, starter):
            if result.failed:  # once more, since a file may come back, or a share be mounted again
                result = starter.start(plan).outcome.get()  # noqa: PLW2901
            left = self._quarantine_failed(plan, result.failed)
            if result.batch or result.fields:
                yield left, result.batch or finish(left, result)
            elif len(left.ids):
                check_shapes(result.shapes, left, self._job)

    def _run(
        self, plans: Iterator[Plan], starter: BatchStarter
    ) -> Generator[tuple[Plan, BatchResult], None, None]:
        """Yield each plan with its result, in order, while later batches are in flight."""
        in_flight: deque[BatchInFlight] = deque()
        failures = RunFailures()
        try:
            for plan in islice(plans, self.traits.batches_ahead):
                in_flight.append(starter.start(plan, failures))
            while in_flight:
                result = in_flight[0].outcome.get()
                plan = in_flight.popleft().plan
                for following in islice(plans, 1):
                    in_flight.append(starter.start(following, failures))
                yield plan, result
                del result  # its memory is the user's alone
        finally:
            for batch in in_flight:
                batch.cancel()
            for batch in in_flight:
                batch.outcome.wait()

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        starter = replace(self._starter, memory=None, cache=None, maps={}, reads_only=True)
        yield from self._iter_counts(plans, starter)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        # The last kernel of many pipelines writes into the batch, so the batch must have memory.
        yield from self._iter_counts(plans, self._starter)

    def _iter_counts(
        self, plans: Iterator[Plan], starter: BatchStarter
    ) -> Generator[int, None, None]:
        for plan, result in self._run(plans, starter):
            yield len(plan.ids) - len(result.failed)

    def close(self) -> None:
        self._threads.close()
        if self._copier is None or self._copier.close():
            self._memory.release()
        else:
            _OF_FAILED_GPUS.append((self._copier, self._memory))
        if self._cache is not None:
            self._cache.close()

    def _to_batch(self, plan: Plan, result: BatchResult) -> Batch:
        with span("hand-over", "loader"):
            fields = result.fields
            if self._copier is not None and result.on_gpu is not None:
                fields = self._copier.hand_over(result.on_gpu)
        if self._job.loader.shapes != "equal":
            fields = fields | shapes_as_tensors(result.shapes)
        if result.annotations is not None:
            plan = replace(plan, annotations=result.annotations)
        return fields | labels_and_values(self._job.index, plan, self._torch_device)


def _find_maps(job: Job) -> dict[str, MappedFiles]:
    """Return the mapped files of each field of image arrays that can be read from maps.

    Other arrays are copied once anyway: torch takes no read-only memory.
    """
    fields = job.pipeline.fields.items()
    pictures = [name for name, spec in fields if not spec.encoded and is_picture(spec)]
    maps = {name: map_files(job.index.columns[name]) for name in pictures}
    return {name: mapped for name, mapped in maps.items() if mapped is not None}


def _lower_phases(job: Job, cache: DecodedCache | None = None) -> list[StepLowering]:
    """Return a StepLowering for each phase: epochs in which no schedule changes a step."""
    cached = {} if cache is None else cache.count_steps()
    return [StepLowering(phase, cached) for phase in job.list_phases()]
