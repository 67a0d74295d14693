"""The DataLoader engine: runs pipelines with torch's DataLoader and torchvision v2's transforms.

1. The parent process makes plans, locations and draws. A worker gets them with its batch.
2. DataLoader returns batches in the order of their work items, so `Works.flight` has their plans.
3. A sample that fails costs only itself: the worker leaves it out and returns the reason.
4. Closing an iteration cancels the batches in flight. Persistent workers stay for the next one.
5. If a worker dies, the engine ends the others. If a sample killed it, `culprits` finds the sample,
   and new workers make the batches in flight again. Otherwise the iteration raises one error.
6. Only the engine refers to torch's iterator, never a frame that a traceback keeps alive. If the
   cyclic garbage collector frees the iterator, ending it takes five seconds per worker, because
   the queue that tells workers to stop is freed first.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils.data import DataLoader

from gpupipe.config import LoaderConfig
from gpupipe.engines.bad_samples import Quarantine, blame
from gpupipe.engines.base import (
    Batch,
    Engine,
    LoadSpec,
    Operator,
    check_shapes,
    labels_and_values,
)
from gpupipe.engines.dataloader.culprits import CRASHES, WorkerCrashed, killers, no_killer
from gpupipe.engines.dataloader.samples import Recipe, Samples, WorkResult
from gpupipe.engines.dataloader.workers import (
    dead_workers,
    end_workers,
    failure,
    one_thread,
    stop_watching,
)
from gpupipe.engines.dataloader.works import Works
from gpupipe.errors import EngineError, counted
from gpupipe.pipeline.step import Step
from gpupipe.runtime.devices import cores, resolve
from gpupipe.runtime.machine_failures import machine_errors
from gpupipe.sampling.sampler import Plan, Sampler

if TYPE_CHECKING:
    from torch import Tensor


class DataLoaderEngine(Engine):
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
    unit = "worker"
    parallelism_setting = "workers"
    reference_settings: ClassVar = {"device": "cpu", "workers": 0}

    def __init__(self, job: LoadSpec, device_id: int | None) -> None:
        self.device = "cpu" if device_id is None else f"gpu:{device_id}"
        self._torch_device = (
            torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
        )
        self._operators(job)
        self.parallelism = _workers(job)
        self.batches_ahead = self.parallelism * job.loader.prefetch
        self._job = job
        self._quarantine = Quarantine(job)
        self._works = Works(job)
        self._loader: DataLoader[WorkResult] | None = self._new_loader()
        self._results: Iterator[WorkResult] = iter(())
        self._started = False
        """Whether the current workers have made a batch."""

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
    def can_run(cls, step: Step) -> bool:
        return type(step).torch is not Step.torch

    @classmethod
    def plan_operators(cls, job: LoadSpec, separate_files: bool) -> dict[str, list[Operator]]:
        return {"cpu": cls._operators(job)}

    @classmethod
    def tunable(cls, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        return super().tunable(on_gpu, [0, *cores])

    @classmethod
    def sides(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        device = "gpu:0" if gpus else "cpu"
        return {
            f"DataLoader, {counted(n, 'worker')}": {"workers": n, "device": device} for n in workers
        }

    @classmethod
    def _operators(cls, job: LoadSpec) -> list[Operator]:
        """Return the operators of a job. Raises EngineError if a step has no torch lowering."""
        for entry in job.pipeline.entries:
            if not cls.can_run(entry.step):
                raise EngineError(
                    f"{entry.where}: {type(entry.step).__name__} has no torch lowering; it "
                    "cannot run on the DataLoader engine: use engine: dali"
                )
        return [
            ("torch.utils.data", "cpu", ()),
            *((f"{e.name}.torch", "cpu", (e.key,)) for e in job.pipeline.entries),
        ]

    @classmethod
    def on(cls, job: LoadSpec, device: str) -> DataLoaderEngine:
        return cls(job, resolve(device))

    @property
    def skipped(self) -> int:
        return len(self._quarantine)

    @property
    def quarantine_file(self) -> str:
        return str(self._quarantine.file)

    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return self._operators(self._job)

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        with machine_errors():
            yield from self._batches(plans)

    def _batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        self._quarantine.check()
        while True:
            try:
                yield from self._run(self._quarantine.without_bad(plans))
                break
            except WorkerCrashed as e:
                crash = e
            plans = chain(list(self._works.flight), plans)
            self._quarantine_killers(crash)
            self._loader = self._new_loader()
        if self._quarantine.refusal is not None:
            raise self._quarantine.refusal

    def _run(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Batch]]:
        self._works.start(plans, self.batches_ahead)
        self._start(self._loader)
        try:
            while (result := self._next()) is not None:
                plan = self._works.finish()
                if result.failed:
                    plan = self._without_failed(plan, result)
                if result.fields is not None:
                    yield plan, self._batch(plan, result.fields)
                elif len(plan.ids):
                    check_shapes(result.shapes, plan, self._job)
        finally:
            self._results = iter(())

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        yield from self._iter_counts(plans, False)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        yield from self._iter_counts(plans, True)

    def _iter_counts(self, plans: Iterator[Plan], steps: bool) -> Generator[int, None, None]:
        """Yield how many samples of each plan were read, and transformed if `steps`."""
        self._works.start(plans, self.batches_ahead)
        samples = Samples(
            _recipes(self._job, steps), self._job.loader.decoder, False, self._job.max_pixels
        )
        self._start(_data_loader(self._job, self._works, self.parallelism, False, samples))
        try:
            while (result := self._next()) is not None:
                yield len(self._works.finish().ids) - len(result.failed)
        finally:
            self._results = iter(())

    def close(self) -> None:
        self._results, self._loader = iter(()), None

    def _new_loader(self) -> DataLoader[WorkResult]:
        return _data_loader(
            self._job, self._works, self.parallelism, self._torch_device.type == "cuda"
        )

    def _start(self, loader: DataLoader[WorkResult] | None) -> None:
        """Start an iteration, and its workers. Raises EngineError, WorkerCrashed."""
        self._started = self._started and loader is not None and loader.persistent_workers
        previous = getattr(loader, "_iterator", None)  # of persistent workers
        try:
            with _suppress_torch_warning():
                self._results = iter(()) if loader is None else iter(loader)
            stop_watching(self._results)
            return
        except (RuntimeError, OSError, EOFError) as e:
            if (failed := self._failure(e, previous)) is None:
                raise
        raise failed

    def _next(self) -> WorkResult | None:
        """Return the next result, or None after the last.

        Raises StepError if a step's code failed, EngineError if a worker died, and WorkerCrashed if
        a sample most likely killed it.
        """
        try:
            with nullcontext() if self.parallelism else one_thread():
                result = next(self._results, None)
            self._started = True
            if error := self._works.failed if result is None else result.error:
                raise error
            return result
        except (RuntimeError, OSError, EOFError) as e:
            if (failed := self._failure(e)) is None:
                raise
        raise failed

    def _failure(self, error: Exception, previous: Any = None) -> EngineError | None:
        """Return the error to raise if a worker died, and end the other workers; else None.

        Args:
            error: What torch's iterator raised.
            previous: The last iterator, if persistent workers died when an iteration started.
        """
        if not self.parallelism:
            return None
        # Compare with None: bool() of torch's iterator asks for its length.
        iterator = self._results if previous is None else previous
        dead = dead_workers(iterator, error)
        engine_error = failure(error, dead, self._job.loader.multiprocessing_context, self._started)
        crashed = [worker for worker in dead if worker.signal in CRASHES]
        if crashed:
            # Between iterations a worker dies of a cancelled batch. Its sample comes again, in a
            # later epoch or attempt, and is found then.
            plans = (
                []
                if previous is not None
                else self._works.of_workers(iterator, {worker.number for worker in crashed})
            )
            engine_error = WorkerCrashed(str(crashed[0]), plans)
        if engine_error is not None:
            end_workers(iterator, dead)
            self.close()
        return engine_error

    def _quarantine_killers(self, crash: WorkerCrashed) -> None:
        """Find the samples that killed a worker, and quarantine them.

        Raises SampleError, TooManyBadError; EngineError if no sample crashes a process on its own.
        """
        ids = [int(i) for plan in crash.plans for i in plan.ids]
        works = [
            self._works.work(plan).sample(n) for plan in crash.plans for n in range(len(plan.ids))
        ]
        try:
            crashes = killers(_samples(self._job), works) if works else []
        except EngineError as e:
            raise EngineError(f"{crash.said}, and {e}") from e
        for position, name in crashes:
            self._quarantine.add(
                ids[position], f"the process that decodes or transforms it dies of {name}"
            )
        if works and not crashes:
            raise no_killer(crash, len(works))

    def _without_failed(self, plan: Plan, result: WorkResult) -> Plan:
        """Quarantine the samples that failed; return the plan without their ids."""
        for position, reason in result.failed:
            id = int(plan.ids[position])
            self._quarantine.add(id, blame(self._job.index, id, reason))
        failed = {position for position, _ in result.failed}
        left = plan.ids[[n not in failed for n in range(len(plan.ids))]]
        if not len(left):
            self._quarantine.refuse_to_lose_a_step()
        return replace(plan, ids=left)

    def _batch(self, plan: Plan, fields: dict[str, Tensor]) -> Batch:
        batch = {
            name: tensor.to(self._torch_device, non_blocking=True)
            for name, tensor in fields.items()
        }
        return batch | labels_and_values(self._job.index, plan, self._torch_device)


def _workers(job: LoadSpec) -> int:
    workers = job.threads if job.loader.workers == "auto" else job.loader.workers
    if workers > cores():
        warnings.warn(
            f"loader.workers={workers}, but this process may use "
            f"{counted(cores(), 'core')}: workers will take turns",
            stacklevel=2,
        )
    return workers


def _data_loader(
    job: LoadSpec, works: Works, workers: int, to_gpu: bool, samples: Samples | None = None
) -> DataLoader[WorkResult]:
    """Create torch's DataLoader. `samples` is its dataset; by default the whole job."""
    options = job.loader
    worker_options: dict[str, Any] = {}
    if workers:
        worker_options = {
            "persistent_workers": options.persistent_workers and samples is None,
            "prefetch_factor": options.prefetch,
        }
        worker_options["multiprocessing_context"] = options.multiprocessing_context
    with _suppress_torch_warning():
        return DataLoader(
            samples or _samples(job),
            batch_size=None,
            sampler=works,
            num_workers=workers,
            pin_memory=to_gpu and options.pin_memory,
            collate_fn=_identity,
            **worker_options,
        )


def _samples(job: LoadSpec) -> Samples:
    return Samples(_recipes(job), job.loader.decoder, max_pixels=job.max_pixels)


def _recipes(job: LoadSpec, steps: bool = True) -> list[Recipe]:
    """Return how to make each field; without `steps`, workers only read it."""
    channels_last = job.loader.memory_format == "channels_last"
    recipes = []
    for name, spec in job.pipeline.fields.items():
        steps_of_field = job.pipeline.on(name) if steps else []
        dtype = job.loader.dtype if name == job.pipeline.main else None
        recipes.append(
            Recipe(
                name,
                steps_of_field,
                None if spec.encoded else spec.dtype,
                spec.layout,
                dtype,
                channels_last and spec.encoded,
            )
        )
    return recipes


@contextmanager
def _suppress_torch_warning() -> Iterator[None]:
    """Suppress torch's warning about more workers than cores: _workers() has one of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


def _identity(result: Any) -> Any:
    return result
