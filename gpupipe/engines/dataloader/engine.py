"""The DataLoader engine: runs pipelines with torch's DataLoader and torchvision v2's transforms.

1. The parent process makes plans, columns and draws. A worker gets them with its batch.
2. DataLoader returns batches in the order of their work items, so that `Works.in_flight` has their
   plans.
3. A sample that fails costs only itself: the worker leaves it out and returns the reason.
4. If a worker dies, `workers` ends the others. If a sample killed it, `culprits` finds the sample,
   and new workers make the batches in flight again. Otherwise the iteration raises one error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from gpupipe.config import LoaderConfig
from gpupipe.decoded_cache.decoded_cache import open_decoded_cache
from gpupipe.decoders.chain import AUTO, DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import FileBytes
from gpupipe.engines.bad_samples import Quarantine, QuarantiningEngine
from gpupipe.engines.base import Batch, EngineTraits, Job, Operator
from gpupipe.engines.batch import check_shapes, labels_and_values
from gpupipe.engines.dataloader.culprits import WorkerCrashed, explain_survival, find_killers
from gpupipe.engines.dataloader.workers import (
    Workers,
    choose_decoder,
    count_workers,
    create_samples,
)
from gpupipe.engines.dataloader.works import Works
from gpupipe.errors import EngineError, counted
from gpupipe.pipeline.entry import Entry
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.tracing import span
from gpupipe.sampling.sampler import Plan, Sampler

if TYPE_CHECKING:
    from torch import Tensor


class DataLoaderEngine(QuarantiningEngine):
    """Runs a job with torch's DataLoader.

    Args:
        job: Samples, steps and settings of the loader.
        device_id: Number of the GPU to which batches are copied; None leaves them on the CPU.

    Raises:
        EngineError: If a step has no torch lowering.
    """

    name = "dataloader"
    settings = Sampler.settings | Quarantine.settings | {
        "threads", "workers", "prefetch", "decoder", "dtype", "memory_format",
        "pin_memory", "persistent_workers", "multiprocessing_context",
    }  # fmt: skip
    traits = EngineTraits(
        unit="worker",
        parallelism_setting="workers",
        keeps_decoded=True,
        reference_settings={"device": "cpu", "workers": 0, "decoder": AUTO},
    )

    def __init__(self, job: Job, device_id: int | None) -> None:
        super().__init__(job, device_id)
        self._operators(job)
        workers = count_workers(job)
        self.traits = self.traits.with_counts(workers, workers * job.loader.prefetch)
        self._works = Works(job)
        self._cache = open_decoded_cache(
            job.cache_decoded,
            job.index,
            job.pipeline,
            job.max_pixels,
            f"{self.name} with {choose_decoder(job.loader)}",
        )
        self._workers = Workers(job, self._works, workers, self._torch_device, self._cache)

    @classmethod
    def find_decoder(cls, loader: LoaderConfig, data: FileBytes, options: DecodeOptions) -> str:
        return DecoderChain(choose_decoder(loader)).find_decoder(data, options)

    @classmethod
    def unused(cls, loader: LoaderConfig) -> dict[str, str]:
        unused = {}
        if loader.workers != "auto":
            unused["threads"] = "workers says how many processes there are"
        if loader.workers == 0:
            of_workers = ("prefetch", "persistent_workers", "multiprocessing_context")
            unused |= dict.fromkeys(of_workers, "workers is 0")
        if loader.device == "cpu":
            unused["pin_memory"] = "device is cpu"
        return unused

    @classmethod
    def can_run(cls, entry: Entry, device: str) -> bool:
        return entry.step.has_torch

    @classmethod
    def plan_operators(cls, job: Job, separate_files: bool) -> dict[str, list[Operator]]:
        return {"cpu": cls._operators(job)}

    @classmethod
    def tunable(cls, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        return {"workers": [0, *cores]}

    @classmethod
    def contestants(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        device = "gpu:0" if gpus else "cpu"
        return {
            f"DataLoader, {counted(n, 'worker')}": {"workers": n, "device": device} for n in workers
        }

    @classmethod
    def _operators(cls, job: Job) -> list[Operator]:
        """Return the operators of a job. Raises EngineError if a step has no torch lowering."""
        for entry in chain.from_iterable(p.entries for p in job.pipeline.phases):
            if not entry.step.has_torch:
                raise EngineError(
                    f"{entry.where}: {type(entry.step).__name__} has no torch lowering; it "
                    "cannot run on the DataLoader engine, but on DALI only: use engine: dali"
                )
        return [
            ("torch.utils.data", "cpu", ()),
            *((f"{e.name}.torch", "cpu", (e.key,)) for e in job.pipeline.entries),
        ]

    @classmethod
    def on(cls, job: Job, device: str) -> DataLoaderEngine:
        return cls(job, resolve(device))

    def lowering(self) -> list[Operator]:
        """Return the operators that run, in order."""
        return self._operators(self._job)

    def _batches(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        while True:
            try:
                yield from self._run(plans)
                return
            except WorkerCrashed as e:
                crash = e
            unfinished = chain(list(self._works.in_flight), plans)
            plans = self._quarantine.iter_good_plans(unfinished)
            self._quarantine_killers(crash)
            self._workers.restart()

    def _run(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        self._works.start(plans, self.traits.batches_ahead)
        self._workers.start()
        try:
            while (result := self._workers.next()) is not None:
                plan = self._works.finish()
                plan = self._quarantine_failed(plan, dict(result.failed))
                if result.fields is not None:
                    yield plan, self._to_batch(plan, result.fields)
                elif len(plan.ids):
                    check_shapes(result.shapes, plan, self._job)
        finally:
            self._workers.cancel()

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        yield from self._iter_counts(plans, False)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        yield from self._iter_counts(plans, True)

    def _iter_counts(self, plans: Iterator[Plan], steps: bool) -> Generator[int, None, None]:
        """Yield how many samples of each plan were read, and transformed if `steps`."""
        self._works.start(plans, self.traits.batches_ahead)
        self._workers.start(create_samples(self._job, steps, deliver=False))
        try:
            while (result := self._workers.next()) is not None:
                yield len(self._works.finish().ids) - len(result.failed)
        finally:
            self._workers.cancel()

    def close(self) -> None:
        self._workers.close()
        if self._cache is not None:
            self._cache.close()

    def _quarantine_killers(self, crash: WorkerCrashed) -> None:
        """Find the samples that killed a worker, and quarantine them.

        Raises SampleError, TooManyBadError; EngineError if no sample crashes a process on its own.
        """
        ids = [int(i) for plan in crash.plans for i in plan.ids]
        works = [
            self._works.create_item(plan).select_sample(n)
            for plan in crash.plans
            for n in range(len(plan.ids))
        ]
        try:
            crashes = find_killers(create_samples(self._job), works) if works else []
        except EngineError as e:
            raise EngineError(f"{crash.description}, and {e}") from e
        for position, name in crashes:
            self._quarantine.add(
                ids[position], f"the process that decodes or transforms it dies of {name}"
            )
        if works and not crashes:
            raise explain_survival(crash, len(works))

    def _to_batch(self, plan: Plan, fields: dict[str, Tensor]) -> Batch:
        with span("hand-over", "loader"):
            batch = {
                name: tensor.to(self._torch_device, non_blocking=True)
                for name, tensor in fields.items()
            }
        return batch | labels_and_values(self._job.index, plan, self._torch_device)
