"""The DataLoader engine: runs pipelines with torch's DataLoader and torchvision v2's transforms.

1. The parent process makes the plans. It sends each worker the columns and draws of its batch.
2. DataLoader returns batches in the order of their plans: see workers.py.
3. If a sample fails, the worker makes the batch without that sample, and returns the reason.
4. If a worker dies, `workers` ends all workers. If a sample killed the worker, `worker_death` finds
   the sample, and new workers make the batches in flight again. Otherwise the iteration raises one
   error.
"""

import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from gpupipe.config import LoaderConfig
from gpupipe.decoded_cache.decoded_cache import open_decoded_cache
from gpupipe.decoders.chain import AUTO, DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import FileBytes
from gpupipe.engines.bad_samples import Quarantine, QuarantiningEngine
from gpupipe.engines.base import Batch, EngineTraits, Job, Operator
from gpupipe.engines.batch import check_shapes, labels_and_values, stays_on_cpu
from gpupipe.engines.dataloader.samples import Samples, choose_decoder
from gpupipe.engines.dataloader.work_item import WorkItem
from gpupipe.engines.dataloader.worker_death import WorkerCrashError, find_killers
from gpupipe.engines.dataloader.workers import Workers
from gpupipe.errors import EngineError, counted
from gpupipe.pipeline.entry import Entry
from gpupipe.runtime.ranks import cores
from gpupipe.runtime.tracing import span
from gpupipe.sampling.sampler import Plan, Sampler

if TYPE_CHECKING:
    from torch import Tensor


class DataLoaderEngine(QuarantiningEngine):
    """Makes the batches of a job with torch's DataLoader, in its workers or in this process.

    Args:
        job: Samples, steps and settings of the loader.
        device_id: Number of the GPU to which batches are copied; None leaves them on the CPU.

    Raises:
        EngineError: If a step has no torch lowering.
    """

    name = "dataloader"
    settings = Sampler.settings | Quarantine.settings | {
        "threads", "workers", "prefetch", "decoder", "dtype", "memory_format", "shapes",
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
        _check_has_torch(job)
        workers = _count_workers(job)
        self.traits = self.traits.with_counts(workers, workers * job.loader.prefetch)
        self._cache = open_decoded_cache(
            job.cache_decoded,
            job.index,
            job.pipeline,
            job.max_pixels,
            f"{self.name} with {choose_decoder(job.loader)}",
        )
        samples = Samples(job, cache=self._cache)
        self._workers = Workers(job, samples, workers, self._torch_device)

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
        _check_has_torch(job)
        steps = [(f"{e.name}.torch", "cpu", (e.key,)) for e in job.pipeline.entries]
        return {"cpu": [("torch.utils.data", "cpu", ()), *steps]}

    @classmethod
    def tunable(cls, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        return {"workers": [0, *cores]}

    @classmethod
    def contestants(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        device = "gpu:0" if gpus else "cpu"
        return {
            f"DataLoader, {counted(n, 'worker')}": {"workers": n, "device": device} for n in workers
        }

    def _batches(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        while True:
            try:
                yield from self._run(plans)
                return
            except WorkerCrashError as e:
                crash = e
            plans = self.quarantine.iter_good_plans(chain(self._workers.in_flight, plans))
            self._quarantine_killers(crash)

    def _run(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        with closing(self._workers.iterate(plans)) as results:
            for plan, result in results:
                good = self._quarantine_failed(plan, dict(result.failed))
                if result.fields is not None:
                    good = replace(good, annotations=result.annotations)
                    yield good, self._to_batch(good, result.fields)
                elif len(good.ids):
                    check_shapes(result.shapes, good, self._job)

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        pipeline = self._job.pipeline
        job = replace(self._job, pipeline=pipeline.without_entries(range(len(pipeline.entries))))
        return self._iter_counts(plans, Samples(job, deliver=False))

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        return self._iter_counts(plans, Samples(self._job, deliver=False))

    def _iter_counts(self, plans: Iterator[Plan], samples: Samples) -> Generator[int, None, None]:
        """Run plans with `samples`; yield for each plan how many of its samples did not fail."""
        with closing(self._workers.iterate(plans, samples)) as results:
            for plan, result in results:
                yield len(plan.ids) - len(result.failed)

    def close(self) -> None:
        self._workers.close()
        if self._cache is not None:
            self._cache.close()

    def _quarantine_killers(self, crash: WorkerCrashError) -> None:
        """Find the samples that killed a worker, and quarantine them.

        Raises:
            SampleError: There is such a sample, and `loader.on_error` is "raise".
            TooManyBadError: All samples are bad now, or more than `loader.max_bad` allows.
            EngineError: No sample alone crashes a process, or the samples could not be tried.
        """
        items = [
            WorkItem.of(self._job, plan).select([n])
            for plan in crash.plans
            for n in range(len(plan.ids))
        ]
        if items:
            ids = [int(i) for plan in crash.plans for i in plan.ids]
            for position, name in find_killers(Samples(self._job), items, crash):
                reason = f"the process that decodes or transforms it dies of {name}"
                self.quarantine.add(ids[position], reason)

    def _to_batch(self, plan: Plan, fields: "dict[str, Tensor]") -> Batch:
        with span("hand-over", "loader"):
            batch = {
                name: tensor
                if stays_on_cpu(name)
                else tensor.to(self._torch_device, non_blocking=True)
                for name, tensor in fields.items()
            }
        return batch | labels_and_values(self._job.index, plan, self._torch_device)


def _check_has_torch(job: Job) -> None:
    """Raise EngineError if a step has no torch lowering."""
    for entry in chain.from_iterable(p.entries for p in job.pipeline.phases):
        if not entry.step.has_torch:
            raise EngineError(
                f"{entry.where}: {type(entry.step).__name__} has no torch lowering; it cannot run "
                "on the DataLoader engine, but on DALI only: use engine: dali"
            )


def _count_workers(job: Job) -> int:
    """Return the number of workers; warn if there are more than cores."""
    workers = job.threads if job.loader.workers == "auto" else job.loader.workers
    if workers > cores():
        warnings.warn(
            f"loader.workers={workers}, but this process may use "
            f"{counted(cores(), 'core')}: workers will take turns",
            stacklevel=2,
        )
    return workers
