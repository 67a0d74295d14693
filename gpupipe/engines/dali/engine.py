"""The DALI engine: plans in, tensors out, on a GPU or on the CPU.

At start-up the engine creates these objects from top to bottom. Each object is complete when its
constructor returns, and needs only the objects above it:

    FieldReaders  read the fields that DALI does not read itself       field_readers.py
      |
    Lowering      steps -> operators; how each file is decoded         lowering.py
      |
    Reader        reads the files of plans ahead                       reader.py
      |
    GraphSource   the inputs of the next batch                         graph.py
      |
    graph         the DALI pipeline                                    graph.py
      |
    GraphRunner   plans in, tensors or errors out, in order            graph.py
      |
    BuiltPipeline all of these for one pipeline without schedules;     built_pipeline.py
      |           runs failed batches again without the bad samples
      |
    DaliEngine    batches

How it runs, and in which order it stops:

1. While DALI schedules a run, it calls the source for the inputs of the next batch. The inputs are
   the bytes that the Reader has read ahead, and one array for each per-sample argument. DALI takes
   inputs `prefetch` plans ahead of the delivered batch.
2. DALIGenericIterator hands over a finished batch through DLPack, without a copy. The tensor owns
   its memory from then on.
3. Labels and ids never enter DALI. They come from the index and become tensors directly.
4. If a run fails, DALI loses the whole batch. The engine stops the source and collects the batches
   in flight, to keep the order of the batches. It repairs the failed batch, and starts the source
   again. It does the same if files are missing or are no image, and so fail before the graph.
5. The plans continue across the end of an epoch. Closing the generator stops the source and drops
   the batches in flight. In an epoch in which a schedule changes numbers, the batches of the epoch
   before are finished first. Then the engine builds another graph.
6. At exit, engines close before DALI's exit handler destroys the pipelines: exit handlers run in
   reverse order, and DALI registers its handler before an engine does.
7. Forked children freeze the garbage collector: a DALI pipeline's destructor would wait for threads
   that do not exist in the child.
"""

import contextlib
import gc
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from typing import Any

from gpupipe.config import LoaderConfig
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import FileBytes
from gpupipe.decoders.image_header import read_header
from gpupipe.engines.bad_samples import Quarantine, QuarantiningEngine
from gpupipe.engines.base import Batch, EngineTraits, Job, Operator
from gpupipe.engines.batch import labels_and_values
from gpupipe.engines.dali.built_pipeline import BuiltPipeline
from gpupipe.engines.dali.cached_reader import open_cache
from gpupipe.engines.dali.checks import can_lower, check_affinity, check_steps
from gpupipe.engines.dali.field_readers import open_fields
from gpupipe.engines.dali.files import can_decode
from gpupipe.engines.dali.lowering import Lowering, build_graph, decodes_regions
from gpupipe.engines.dali.memory import check_memory
from gpupipe.engines.dali.operators.ops import Device
from gpupipe.engines.dali.reader import BuildOptions
from gpupipe.pipeline.entry import Entry
from gpupipe.runtime.capability_probe import can_decode_regions
from gpupipe.runtime.devices import backend_of, resolve
from gpupipe.runtime.failures import gpu_failure
from gpupipe.runtime.memory import let_dali_pool_buffers, malloc_trim, release_unused_memory
from gpupipe.runtime.process import ExitHandler
from gpupipe.runtime.systems import call_after_fork
from gpupipe.sampling.sampler import Plan, Sampler

call_after_fork(gc.freeze)
_EPOCHS_BETWEEN_TRIMS = 8
"""How many epochs pass between calls of malloc_trim. After a trim, the page faults cost 2 % of an
epoch of 5,000 small images, so the engine does not trim after each epoch.
"""


class DaliEngine(QuarantiningEngine):
    """Makes the batches of a job with DALI, on a GPU or on the CPU.

    Args:
        job: The samples, the steps and the loader settings.
        device_id: The GPU's number, or None for DALI's CPU back end.
        may_cut: Whether the decoder may decode only the region of an image that the steps need.
        checks_jpegs: Whether to check JPEGs before DALI decodes them. A JPEG without an end marker
            then counts as a bad sample. A JPEG that has an end marker, but looks damaged, is
            decoded by gpupipe.decoders instead of DALI; see files.py. None: check only on a GPU.
        warm_up: Whether to run a full batch first, and to drop it, if the first batch is short. The
            size of the first batch sets the hardware decoder's share of all later batches. None:
            only if the hardware decoder may be used.
    """

    name = "dali"
    traits = EngineTraits(
        backends=("gpu", "cpu"),
        native_memory_format="channels_last",
        keeps_decoded=True,
        calls_in_place=True,
    )
    settings = (
        Sampler.settings
        | Quarantine.settings
        | {"threads", "prefetch", "dtype", "memory_format", "shapes"}
        | {"hw_decoder_load", "set_affinity", "gpu_memory"}
    )

    def __init__(
        self,
        job: Job,
        device_id: int | None,
        may_cut: bool = True,
        checks_jpegs: bool | None = None,
        warm_up: bool | None = None,
    ) -> None:
        super().__init__(job, device_id)
        self.traits = self.traits.with_counts(job.threads, job.loader.prefetch)
        let_dali_pool_buffers()
        if warm_up is None:
            has_images = any(spec.encoded for spec in job.pipeline.fields.values())
            warm_up = device_id is not None and job.loader.hw_decoder_load > 0 and has_images
        self._options = BuildOptions(
            device_id,
            may_cut,
            device_id is not None if checks_jpegs is None else checks_jpegs,
            warm_up,
            open_fields(job),
            open_cache(job, self.device, may_cut),
        )
        self._built, self._phase = self._build(0), 0
        self._is_closed = False
        self._epochs = 0
        self._at_exit = ExitHandler(self.close)

    @classmethod
    def unused(cls, loader: LoaderConfig) -> dict[str, str]:
        settings = ("hw_decoder_load", "gpu_memory") if loader.device == "cpu" else ()
        return dict.fromkeys(settings, "device is cpu")

    @classmethod
    def can_run(cls, entry: Entry, device: str) -> bool:
        return can_lower(entry, backend_of(device))

    @classmethod
    def find_decoder(cls, loader: LoaderConfig, data: FileBytes, options: DecodeOptions) -> str:
        is_for_dali = can_decode(read_header(data), data)
        return "DALI" if is_for_dali else DecoderChain().find_decoder(data, options)

    @classmethod
    def plan_operators(cls, job: Job, separate_files: bool) -> dict[str, list[Operator]]:
        for phase in job.list_phases():
            build_graph(Lowering(phase, "cpu", True), None, lambda: [])
        devices: tuple[Device, ...] = ("gpu", "cpu")
        encoded = any(spec.encoded for spec in job.pipeline.fields.values())
        read = "io.file.read" if encoded and separate_files else "external_source"
        return {d: [(read, "cpu", ()), *Lowering(job, d, d == "cpu").operators()] for d in devices}

    @classmethod
    def tunable(cls, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        return {"hw_decoder_load": [0.0, 0.65, 0.9, 1.0]} if on_gpu else {}

    @classmethod
    def contestants(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        on_gpu = {"DALI on GPU": {"device": "gpu:0"}} if gpus else {}
        return on_gpu | {"DALI on CPU": {"device": "cpu"}}

    @classmethod
    def on(cls, job: Job, device: str) -> "DaliEngine":
        number = resolve(device)
        if job.loader.set_affinity:
            check_affinity(job.threads, number)
        phases = job.list_phases()
        check_steps(phases, number)
        may_cut = number is None or (
            any(decodes_regions(phase) for phase in phases) and can_decode_regions(number)
        )
        if job.loader.gpu_memory is not None and number is not None:
            for phase in phases:
                check_memory(phase, job.loader.gpu_memory, may_cut)
        return cls(job, number, may_cut)

    def _batches(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        self._built.stop()
        try:
            for built, of_phase in self._iter_phases(plans):
                for plan, tensors in built.run(of_phase):
                    values = labels_and_values(self._job.index, plan, self._torch_device)
                    yield plan, built.to_fields(tensors) | values
                    self._trim_memory(plan)
        finally:
            self._built.stop()

    def _iter_phases(self, plans: Iterator[Plan]) -> Iterator[tuple[BuiltPipeline, Iterator[Plan]]]:
        """Yield, for each phase, the pipeline that runs the phase, and the plans of the phase.

        A phase is a span of epochs in which no schedule changes a number. The caller must run all
        plans of a phase before it asks for the next phase.
        """
        for phase, of_phase in groupby(plans, lambda plan: self._job.pipeline.phase_of(plan.epoch)):
            if phase != self._phase or self._built.is_closed:  # building it may have failed
                self._built.close()
                self._built, self._phase = self._build(phase), phase
            yield self._built, of_phase

    def _build(self, phase: int) -> BuiltPipeline:
        """Build the pipeline of a phase: a span of epochs in which no schedule changes a number."""
        return BuiltPipeline(self._job.list_phases()[phase], self._options, self.quarantine)

    def _trim_memory(self, plan: Plan) -> None:
        """Return free memory to the system if `plan` ends an epoch, in every eighth epoch.

        Called after each batch.
        """
        self._epochs += plan.last
        if plan.last and self._epochs % _EPOCHS_BETWEEN_TRIMS == 0:
            malloc_trim()

    def unmap_files(self, files: set[int]) -> None:
        for field in self._options.fields.values():
            field.unmap_files(files)

    def close(self) -> None:
        self._at_exit.cancel()
        if self._is_closed:
            return
        self._is_closed = True
        self._built.close()
        if self._options.cache is not None:
            self._options.cache.close()
        if self._torch_device.type == "cuda" and not gpu_failure(self._torch_device.index):
            release_unused_memory(self._torch_device)

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        for built, of_phase in self._iter_phases(plans):
            yield from built.iter_read_only(of_phase)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        for built, of_phase in self._iter_phases(plans):
            with contextlib.closing(built.iter_without_delivery(of_phase)) as counts:
                yield from counts
