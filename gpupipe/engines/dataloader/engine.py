"""The DataLoader engine: the same plans and draws on torch.utils.data.DataLoader, with torchvision
v2's transforms.

1. Plans, paths and draws are made here, in the parent; a worker gets them with its batch, and makes
   none.
2. DataLoader returns batches in the order in which they were handed out; `_flight` are their plans.
3. A sample that fails costs only itself: the worker leaves it out and says why.
4. Closing an iteration gives up what is in flight; the workers stay for the next one where they are
   persistent.
5. A worker that dies ends the others. If it died of a sample, that sample is found in a process
   that may die, and the batches in flight are made again by new workers; else the iteration ends
   with one error.
6. Only this engine holds torch's iterator, never a frame that an error's traceback keeps: what a
   cyclic garbage collection finds, torch takes five seconds a worker to end, since the queue that
   would tell it to is gone first.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from gpupipe.config import LoaderConfig
from gpupipe.engines.bad_samples import Quarantine, blame
from gpupipe.engines.base import Batch, Engine, LoadSpec, check_shapes, known, torch_lowering
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
from gpupipe.runtime.devices import cores, resolve
from gpupipe.runtime.machine_failures import machine_errors
from gpupipe.sampling.sampler import Plan, Sampler

if TYPE_CHECKING:
    from torch import Tensor


class DataLoaderEngine(Engine):
    """Runs a job with torch's DataLoader.

    device_id: the GPU that batches are copied to, or None to leave them where they are.
    """

    name = "dataloader"
    settings = Sampler.settings | Quarantine.settings | {
        "threads", "workers", "prefetch", "decoder", "dtype", "memory_format",
        "pin_memory", "persistent_workers", "multiprocessing_context",
    }  # fmt: skip
    unit = "worker"

    def __init__(self, job: LoadSpec, device_id: int | None) -> None:
        self.device = "cpu" if device_id is None else f"gpu:{device_id}"
        self._torch_device = (
            torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
        )
        torch_lowering(job)
        self.parallelism = _workers(job)
        self.batches_ahead = self.parallelism * job.loader.prefetch
        self._job = job
        self._quarantine = Quarantine(job)
        self._works = Works(job)
        self._loader: DataLoader[WorkResult] | None = self._new_loader()
        self._made: Iterator[WorkResult] = iter(())
        self._started = False
        """Whether a worker of those that run has made a batch."""

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
    def on(cls, job: LoadSpec, device: str) -> DataLoaderEngine:
        return cls(job, resolve(device))

    @property
    def skipped(self) -> int:
        return len(self._quarantine)

    @property
    def quarantine_file(self) -> str:
        return str(self._quarantine.file)

    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return torch_lowering(self._job)

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
            while (made := self._next()) is not None:
                plan = self._works.finish()
                if made.failed:
                    plan = self._without_failed(plan, made)
                if made.fields is not None:
                    yield plan, self._batch(plan, made.fields)
                elif len(plan.ids):
                    check_shapes(made.shapes, plan, self._job)
        finally:
            self._made = iter(())

    def reading(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        yield from self._done(plans, False)

    def making(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        yield from self._done(plans, True)

    def _done(self, plans: Iterator[Plan], steps: bool) -> Generator[int, None, None]:
        self._works.start(plans, self.batches_ahead)
        samples = Samples(
            _recipes(self._job, steps), self._job.loader.decoder, False, self._job.max_pixels
        )
        self._start(_data_loader(self._job, self._works, self.parallelism, False, samples))
        try:
            while (made := self._next()) is not None:
                yield len(self._works.finish().ids) - len(made.failed)
        finally:
            self._made = iter(())

    def close(self) -> None:
        self._made, self._loader = iter(()), None

    def _new_loader(self) -> DataLoader[WorkResult]:
        return _data_loader(
            self._job, self._works, self.parallelism, self._torch_device.type == "cuda"
        )

    def _start(self, loader: DataLoader[WorkResult] | None) -> None:
        """Begin an iteration. Raises EngineError if workers cannot be started, WorkerCrashed."""
        self._started = self._started and loader is not None and loader.persistent_workers
        before = getattr(loader, "_iterator", None)  # of persistent workers
        try:
            with _without_torchs_warning():
                self._made = iter(()) if loader is None else iter(loader)
            stop_watching(self._made)
            return
        except (RuntimeError, OSError, EOFError) as e:
            if (failed := self._failure(e, before)) is None:
                raise
        raise failed

    def _next(self) -> WorkResult | None:
        """Return the next batch, or None after the last.

        Raises EngineError if a worker died, WorkerCrashed if most likely of a sample, StepError if
        a step's own code failed.
        """
        try:
            with nullcontext() if self.parallelism else one_thread():
                made = next(self._made, None)
            self._started = True
            if error := self._works.failed if made is None else made.error:
                raise error
            return made
        except (RuntimeError, OSError, EOFError) as e:
            if (failed := self._failure(e)) is None:
                raise
        raise failed

    def _failure(self, error: Exception, before: Any = None) -> EngineError | None:
        """What the end of a worker comes to: the others end too.

        before: the iterator whose workers were to begin another iteration.
        """
        if not self.parallelism:
            return None
        iterator = self._made if before is None else before  # it has a length, but no truth
        dead = dead_workers(iterator, error)
        found = failure(error, dead, self._job.loader.multiprocessing_context, self._started)
        crashed = [worker for worker in dead if worker.signal in CRASHES]
        if crashed:
            # Between iterations a worker dies of what was given up: that is met again.
            plans = (
                []
                if before
                else self._works.of_workers(iterator, {worker.number for worker in crashed})
            )
            found = WorkerCrashed(str(crashed[0]), plans)
        if found is not None:
            end_workers(iterator, dead)
            self.close()
        return found

    def _quarantine_killers(self, crash: WorkerCrashed) -> None:
        """Find the samples that a worker died of.

        Raises SampleError, TooManyBadError; EngineError where no sample ends a process.
        """
        ids = [int(i) for plan in crash.plans for i in plan.ids]
        works = [
            self._works.work(plan).sample(n) for plan in crash.plans for n in range(len(plan.ids))
        ]
        try:
            found = killers(_samples(self._job), works) if works else []
        except EngineError as e:
            raise EngineError(f"{crash.said}, and {e}") from e
        for place, name in found:
            self._quarantine.add(
                ids[place], f"the process that decodes or transforms it dies of {name}"
            )
        if works and not found:
            raise no_killer(crash, len(works))

    def _without_failed(self, plan: Plan, made: WorkResult) -> Plan:
        """The plan with the ids that were delivered; the others are quarantined."""
        for place, said in made.failed:
            id = int(plan.ids[place])
            self._quarantine.add(id, blame(self._job.index, id, said))
        failed = {place for place, _ in made.failed}
        left = plan.ids[[n not in failed for n in range(len(plan.ids))]]
        if not len(left):
            self._quarantine.refuse_to_lose_a_step()
        return replace(plan, ids=left)

    def _batch(self, plan: Plan, fields: dict[str, Tensor]) -> Batch:
        batch = {
            name: tensor.to(self._torch_device, non_blocking=True)
            for name, tensor in fields.items()
        }
        return batch | known(self._job.index, plan, self._torch_device)


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
    """samples: what workers do; by default the whole job."""
    options = job.loader
    kept: dict[str, Any] = {}
    if workers:
        kept = {
            "persistent_workers": options.persistent_workers and samples is None,
            "prefetch_factor": options.prefetch,
        }
        kept["multiprocessing_context"] = options.multiprocessing_context
    with _without_torchs_warning():
        return DataLoader(
            samples or _samples(job),
            batch_size=None,
            sampler=works,
            num_workers=workers,
            pin_memory=to_gpu and options.pin_memory,
            collate_fn=_as_it_is,
            **kept,
        )


def _samples(job: LoadSpec) -> Samples:
    return Samples(_recipes(job), job.loader.decoder, max_pixels=job.max_pixels)


def _recipes(job: LoadSpec, steps: bool = True) -> list[Recipe]:
    """What is done to each field; without `steps` it is only read."""
    last = job.loader.memory_format == "channels_last"
    recipes = []
    for name, spec in job.pipeline.fields.items():
        done = job.pipeline.on(name) if steps else []
        dtype = job.loader.dtype if name == job.pipeline.main else None
        recipes.append(
            Recipe(
                name,
                done,
                None if spec.encoded else spec.dtype,
                spec.layout,
                dtype,
                last and spec.encoded,
            )
        )
    return recipes


@contextmanager
def _without_torchs_warning() -> Iterator[None]:
    """That there are more workers than cores is said once, in gpupipe's own terms."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


def _as_it_is(made: Any) -> Any:
    return made
