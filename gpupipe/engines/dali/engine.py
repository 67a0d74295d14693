"""The DALI engine: plans in, tensors out, on a GPU or on the CPU.

Start-up is a straight line. Each object is complete when its constructor returns, and needs only
those above it:

    FieldReaders  read the fields that DALI does not read itself       field_reader.py
      |
    Lowering      steps -> operators; how each file is decoded         lowering.py
      |
    Reader        reads the files of plans ahead                       reader.py
      |
    GraphSource   the inputs of the next batch                         graph_source.py
      |
    graph         the DALI pipeline                                    graph.py
      |
    GraphRunner   plans in, tensors or errors out, in order            graph_runner.py
      |
    BatchRepair   runs failed batches again without the bad samples    repair.py
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
   in flight, so that their order stays. It repairs the failed batch, and starts the source again.
   Files that fail before the graph, because they are missing or no image, take the same path.
5. The plans continue across the end of an epoch. Closing the generator stops the source and drops
   the batches in flight.
6. At exit, engines close before DALI's own exit handler destroys the pipelines: exit handlers run
   in reverse order, and DALI registers its own earlier.
7. Forked children freeze the garbage collector: a DALI pipeline's destructor would wait for threads
   that do not exist in the child.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any
from weakref import ref

import torch

from gpupipe.config import LoaderConfig
from gpupipe.engines.bad_samples import Quarantine
from gpupipe.engines.base import Batch, Engine, LoadSpec, Operator
from gpupipe.engines.batch import labels_and_values
from gpupipe.engines.dali.affinity import check_affinity
from gpupipe.engines.dali.checks import check_batch, check_steps
from gpupipe.engines.dali.delivery import to_field
from gpupipe.engines.dali.graph import build_graph
from gpupipe.engines.dali.graph_runner import GraphRunner, Outcome, Tensors
from gpupipe.engines.dali.graph_source import GraphSource
from gpupipe.engines.dali.known_good import KnownGood
from gpupipe.engines.dali.lowering import Device, Lowering, decodes_regions
from gpupipe.engines.dali.memory import check_memory
from gpupipe.engines.dali.reader import make_reader, open_fields, reader_operators
from gpupipe.engines.dali.repair import BatchRepair, raise_unless_sample_failed
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.machine_failures import machine_errors
from gpupipe.runtime.malloc import let_dali_pool_buffers, malloc_trim, release_unused_memory
from gpupipe.runtime.region_decoding import can_decode_regions
from gpupipe.sampling.sampler import Plan, Sampler

os.register_at_fork(after_in_child=gc.freeze)
_EPOCHS_BETWEEN_TRIMS = 8
"""How many epochs pass between calls of malloc_trim. After a trim, the page faults cost 2 % of an
epoch of 5,000 small images, so the engine does not trim after each epoch.
"""


class DaliEngine(Engine):
    """Runs a job with DALI.

    Args:
        job: The samples, the steps and the loader settings.
        device_id: The GPU's number, or None for DALI's CPU back end.
        may_cut: Whether the decoder may decode a region of an image.
        jpeg_ends: Whether JPEGs without an end marker are refused before the decoder. By default
            only on a GPU; see jpeg_end.py.
        warm_up: Whether a full batch is decoded first if the first batch is short. By default only
            if the hardware decoder may be used; see GraphRunner.
    """

    name = "dali"
    backends = ("gpu", "cpu")
    native_memory_format = "channels_last"
    settings = (
        Sampler.settings
        | Quarantine.settings
        | {
            "threads",
            "prefetch",
            "dtype",
            "memory_format",
            "hw_decoder_load",
            "set_affinity",
            "gpu_memory",
        }
    )

    def __init__(
        self,
        job: LoadSpec,
        device_id: int | None,
        may_cut: bool = True,
        jpeg_ends: bool | None = None,
        warm_up: bool | None = None,
    ) -> None:
        self.device = "cpu" if device_id is None else f"gpu:{device_id}"
        self._torch_device = (
            torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
        )
        self.parallelism = job.threads
        self.batches_ahead = job.loader.prefetch
        self._job = job
        self._quarantine = Quarantine(job)
        let_dali_pool_buffers()
        is_gpu = device_id is not None
        self._fields = open_fields(job)
        lowering = self._lowering = Lowering(job, "gpu" if is_gpu else "cpu", may_cut)
        self._reader = make_reader(
            job, lowering.decodings(), self._fields, is_gpu if jpeg_ends is None else jpeg_ends
        )
        source = GraphSource(job, lowering, self._reader, self._fields)
        graph = build_graph(job, lowering, device_id, source)
        needs_warm_up = uses_hardware_decoder(job, device_id) if warm_up is None else warm_up
        self._runner = GraphRunner(
            graph,
            source,
            self._reader,
            list(job.pipeline.outputs),
            min(job.loader.batch_size, len(job.index)) if needs_warm_up else 0,
        )
        self._known_good = KnownGood(device_id)
        self._repair = BatchRepair(job, self._runner, self._quarantine, self._known_good)
        self._epochs = 0
        self._at_exit = partial(_close, ref(self), os.getpid())
        atexit.register(self._at_exit)

    @classmethod
    def unused(cls, loader: LoaderConfig) -> dict[str, str]:
        return (
            dict.fromkeys(("hw_decoder_load", "gpu_memory"), "device is cpu")
            if loader.device == "cpu"
            else {}
        )

    @classmethod
    def plan_operators(cls, job: LoadSpec, separate_files: bool) -> dict[str, list[Operator]]:
        build_graph(job, Lowering(job, "cpu", True), None, lambda: [])
        devices: tuple[Device, ...] = ("gpu", "cpu")
        encoded = any(spec.encoded for spec in job.pipeline.fields.values())
        read = "io.file.read" if encoded and separate_files else "external_source"
        return {
            d: [
                (read, "cpu", ()),
                *((e.op, e.device, e.steps) for e in Lowering(job, d, d == "cpu").operators()),
            ]
            for d in devices
        }

    @classmethod
    def tunable(cls, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        decoder = {"hw_decoder_load": [0.0, 0.65, 0.9, 1.0]} if on_gpu else {}
        return super().tunable(on_gpu, cores) | decoder

    @classmethod
    def sides(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        on_gpu = {"DALI on GPU": {"device": "gpu:0"}} if gpus else {}
        return on_gpu | {"DALI on CPU": {"device": "cpu"}}

    @classmethod
    def on(cls, job: LoadSpec, device: str) -> DaliEngine:
        number = resolve(device)
        if job.loader.set_affinity:
            check_affinity(job.threads, number)
        check_steps(job, number)
        may_cut = number is None or (decodes_regions(job) and can_decode_regions(number))
        if job.loader.gpu_memory is not None and number is not None:
            check_memory(job, job.loader.gpu_memory, may_cut)
        return cls(job, number, may_cut)

    @property
    def skipped(self) -> int:
        return len(self._quarantine)

    @property
    def quarantine_file(self) -> str:
        return str(self._quarantine.file)

    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return [
            *reader_operators(self._job),
            *((e.op, e.device, e.steps) for e in self._lowering.operators()),
        ]

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        with machine_errors():
            yield from self._batches(plans)

    def _batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        self._quarantine.check()
        self._runner.stop()
        self._quarantine.refusal = None
        more = True
        try:
            while more and self._quarantine.refusal is None:
                more = False
                for plan, outcome in self._runner.run(self._quarantine.iter_good_plans(plans)):
                    if isinstance(outcome, RuntimeError):
                        yield from self._deliver_repaired([(plan, outcome), *self._runner.flush()])
                        more = True
                        break
                    yield plan, self._batch(plan, outcome)
                    self._trim_memory(plan)
        finally:
            self._runner.stop()
        if self._quarantine.refusal is not None:
            raise self._quarantine.refusal

    def _deliver_repaired(
        self, outcomes: list[tuple[Plan, Outcome]]
    ) -> Iterator[tuple[Plan, Batch]]:
        """Yield the batches of `outcomes` in order; failed ones run again without bad samples."""
        for plan, outcome in outcomes:
            repaired = (
                self._repair.repair(plan, outcome)
                if isinstance(outcome, RuntimeError)
                else [(plan, outcome)]
            )
            for reduced_plan, tensors in repaired:
                yield reduced_plan, self._batch(reduced_plan, tensors)

    def _batch(self, plan: Plan, tensors: Tensors) -> Batch:
        batch = {name: to_field(self._job, name, tensor) for name, tensor in tensors.items()}
        check_batch(self._job, batch)
        return batch | labels_and_values(self._job.index, plan, self._torch_device)

    def _trim_memory(self, plan: Plan) -> None:
        """Return free memory to the system after the last batch of every eighth epoch."""
        self._epochs += plan.last
        if plan.last and self._epochs % _EPOCHS_BETWEEN_TRIMS == 0:
            malloc_trim()

    def unmap_files(self, files: set[int]) -> None:
        for field in self._fields.values():
            field.unmap_files(files)

    def close(self) -> None:
        atexit.unregister(self._at_exit)
        if self._runner.is_closed:
            return
        # A GPU that has failed raises here. Closing must not hide why it failed.
        with contextlib.suppress(RuntimeError):
            self._runner.stop()
        # DALI's operators and the source refer to one another. If the reader did not close, its
        # pipeline would stay alive until a garbage collection.
        self._reader.close()
        self._runner.close()
        self._known_good.close()
        if self._torch_device.type == "cuda":
            release_unused_memory()

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        for first in plans:
            self._reader.start(chain([first], plans))
            yield from (len(read.plan.ids) * (read.error is None) for read in self._reader)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        with contextlib.closing(self._runner.run_undelivered(plans)) as outcomes:
            for plan, outcome in outcomes:
                if isinstance(outcome, RuntimeError):
                    raise_unless_sample_failed(self._job, outcome)
                yield 0 if isinstance(outcome, RuntimeError) else len(plan.ids)


def uses_hardware_decoder(job: LoadSpec, device_id: int | None) -> bool:
    """Return whether the GPU's hardware decoder may decode fields of a job."""
    return (
        device_id is not None
        and job.loader.hw_decoder_load > 0
        and any(spec.encoded for spec in job.pipeline.fields.values())
    )


def _close(engine: ref[DaliEngine], process: int) -> None:
    """Close the engine at exit, before DALI destroys pipelines that an open iteration still uses.

    A forked child does nothing.
    """
    alive = engine()
    if alive is not None and os.getpid() == process:
        alive.close()
