"""Torch's DataLoader with its worker processes: plans go in, and come out with their results.

Torch takes plans ahead, `count * prefetch` of them, and sends each to a worker as a work item:

    plans ──> PlanSampler ──> WorkItem ──> worker: Samples[item] ──> WorkResult ──> (plan, result)
              └─ in_flight: the plans whose results torch has not returned ───────────┘

Examples:
    >>> workers = Workers(job, samples, count=2, device=torch.device("cpu"))
    >>> for plan, result in workers.iterate(plans):
    ...     plan.ids, result.fields
    >>> workers.close()

Invariants:

1. Torch returns results in the order of the plans. So a result belongs to the first plan in flight.
2. The end of an iteration cancels the batches in flight. Persistent workers stay for the next
   iteration.
3. If a worker dies, all workers are ended, and the iteration raises one error. It is a
   WorkerCrashError if a sample most likely killed the worker. The next iteration starts new
   workers, which can make the plans in flight again.
4. Workers are ended explicitly. Otherwise a traceback may keep torch's iterator and its workers
   alive. If the cyclic garbage collector frees the iterator, it frees the queue that stops the
   workers first: each worker then takes five seconds to end, and on Python 3.13 a thread of torch
   fails.
"""

import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from gpupipe.engines.base import Job
from gpupipe.engines.dataloader.samples import Samples, limit_to_one_thread
from gpupipe.engines.dataloader.work_item import WorkItem, WorkResult
from gpupipe.engines.dataloader.worker_death import (
    CRASHES,
    WorkerCrashError,
    explain_failure,
    find_dead_workers,
    remove_shared_memory,
    stop_watching,
    without_child_signals,
)
from gpupipe.errors import EngineError, StepError
from gpupipe.runtime.memory import on_device
from gpupipe.runtime.process import end_with_parent
from gpupipe.sampling.sampler import Plan

_T = TypeVar("_T")


class PlanSampler:
    """The sampler of torch's DataLoader: yields a work item for each plan.

    Args:
        job: The job, which draws the parameters of the steps for each plan.
        ahead: How many plans torch takes when its iterator is created.

    Attributes:
        in_flight: Plans that torch has taken and whose results it has not returned, in order.
        error: The error that ended the iteration early. It is stored, because an exception in the
            sampler would leave torch's iterator half initialised.
    """

    def __init__(self, job: Job, ahead: int) -> None:
        self._job, self._ahead = job, ahead
        self._taken_ahead: list[Plan] = []
        self._plans: Iterator[Plan] = iter(())
        self._finished = 0
        self.in_flight: deque[Plan] = deque()
        self.error: StepError | None = None

    def start(self, plans: Iterator[Plan]) -> None:
        """Start an iteration over `plans`, and take the first `ahead` of them."""
        self._plans, self._finished, self.error = plans, 0, None
        # Take them before torch does: if a worker dies meanwhile, torch raises inside the sampler,
        # and that would end the generator `plans` for good.
        self._taken_ahead = list(islice(plans, self._ahead))
        self.in_flight = deque(self._taken_ahead)

    def __iter__(self) -> Iterator[WorkItem]:
        for plan in chain(self._taken_ahead, self._take_rest()):
            try:
                item = WorkItem.of(self._job, plan)
            except StepError as e:
                self.error = e
                return
            yield item

    def _take_rest(self) -> Iterator[Plan]:
        for plan in self._plans:
            self.in_flight.append(plan)
            yield plan

    def finish(self) -> Plan:
        """Remove and return the plan whose result torch has just returned."""
        self._finished += 1
        return self.in_flight.popleft()

    def plans_of_workers(self, iterator: Any, numbers: set[int | None]) -> list[Plan]:
        """Return the plans in flight that certain workers have; if they have none, all in flight.

        Args:
            iterator: Torch's iterator, which knows the worker of each plan.
            numbers: Which workers: their numbers in torch's iterator, from 0.
        """
        # By number of the task: (worker,), or (worker, batch) if the batch has arrived.
        tasks = getattr(iterator, "_task_info", {})
        plans = [
            plan
            for number, plan in enumerate(self.in_flight, self._finished)
            if len(task := tasks.get(number, ())) == 1 and task[0] in numbers
        ]
        return plans or list(self.in_flight)


class Workers:
    """Runs plans in worker processes, or in this process if there are none.

    Args:
        job: Samples, steps and settings of the loader.
        samples: Makes the result of a work item.
        count: The number of worker processes; 0 runs the plans in this process.
        device: The device to which the caller copies the batches. For a GPU, the batches are in
            page-locked memory if `loader.pin_memory` is set.
    """

    def __init__(self, job: Job, samples: Samples, count: int, device: torch.device) -> None:
        self._job, self._samples, self._count, self._device = job, samples, count, device
        self._sampler = PlanSampler(job, count * job.loader.prefetch)
        self._loader: DataLoader[WorkResult] | None = self._create_loader(samples)
        """Torch's DataLoader; None after its workers were ended."""
        self._results: Iterator[WorkResult] = iter(())
        self._started = False
        """Whether the current workers have made a batch."""

    @property
    def in_flight(self) -> list[Plan]:
        """The plans that torch has taken and whose results were not yielded, in order."""
        return list(self._sampler.in_flight)

    def iterate(
        self, plans: Iterator[Plan], samples: Samples | None = None
    ) -> Generator[tuple[Plan, WorkResult], None, None]:
        """Yield each plan with its result.

        Args:
            plans: The plans, in order.
            samples: Makes the results, in new workers. None: the `samples` of the constructor make
                the results.

        Raises:
            StepError: The code of a step failed.
            EngineError: A worker died, or the machine failed.
            WorkerCrashError: A sample most likely killed a worker.
        """
        self._start(plans, samples)
        try:
            while (result := self._next()) is not None:
                yield self._sampler.finish(), result
        finally:
            results, self._results = self._results, iter(())
            if not getattr(results, "_persistent_workers", False):
                _end_workers(results)

    def _start(self, plans: Iterator[Plan], samples: Samples | None) -> None:
        self._sampler.start(plans)
        if self._loader is None:
            self._loader = self._create_loader(self._samples)
        loader = self._loader if samples is None else self._create_loader(samples)
        self._started = self._started and loader.persistent_workers

        def create_iterator() -> Iterator[WorkResult]:
            with _ignore_torch_warning(), on_device(self._device):
                return iter(loader)

        previous = getattr(loader, "_iterator", None)  # of persistent workers
        self._results = self._call(create_iterator, previous)
        stop_watching(self._results)

    def _next(self) -> WorkResult | None:
        """Return the next result, or None after the last."""

        def take_next() -> WorkResult | None:
            one_thread = nullcontext() if self._count else limit_to_one_thread()
            with one_thread, on_device(self._device):
                return next(self._results, None)

        result = self._call(take_next)
        self._started = True
        if error := self._sampler.error if result is None else result.error:
            if isinstance(error, StepError) and result is not None and result.row is not None:
                id = int(self._sampler.in_flight[0].ids[result.row])
                raise error.at_sample(self._job.index.location(id))
            raise error
        return result

    def _call(self, function: Callable[[], _T], previous: Any = None) -> _T:
        """Call a function of torch. If a worker died, raise an error that explains the death.

        Args:
            function: The function.
            previous: The iterator of persistent workers that `function` starts again; else None.
        """
        try:
            return function()
        except (RuntimeError, OSError, EOFError) as e:
            if (failed := self._end_after(e, previous)) is None:
                raise
        raise failed

    def close(self) -> None:
        """End all workers. Idempotent."""
        iterators = self._results, getattr(self._loader, "_iterator", None)
        self._results, self._loader = iter(()), None
        for iterator in iterators:
            _end_workers(iterator)

    def _end_after(self, error: Exception, previous: Any = None) -> EngineError | None:
        """If a worker died, end all workers, and return the error to raise; else return None.

        Args:
            error: The exception from torch's iterator.
            previous: The iterator of the persistent workers, if the exception came while an
                iteration was started with them; else None.
        """
        if not self._count:
            return None
        # Compare with None: bool() of torch's iterator asks for its length.
        iterator = self._results if previous is None else previous
        dead = find_dead_workers(iterator, error)
        engine_error = explain_failure(
            error, dead, self._job.loader.multiprocessing_context, self._started
        )
        if crashed := [worker for worker in dead if worker.signal in CRASHES]:
            plans = []
            if previous is None:
                numbers = {worker.number for worker in crashed}
                plans = self._sampler.plans_of_workers(iterator, numbers)
            # Otherwise a sample of a cancelled batch killed the worker, between two iterations. It
            # kills a worker again in a later epoch or attempt, and is found then.
            engine_error = WorkerCrashError(str(crashed[0]), plans)
        if engine_error is not None:
            pids = {w.pid for w in (*dead, *getattr(iterator, "_workers", ()))}
            with without_child_signals():
                self.close()
            remove_shared_memory(pids)
        return engine_error

    def _create_loader(self, samples: Samples) -> DataLoader[WorkResult]:
        """Create torch's DataLoader.

        Workers persist only for the `samples` of the constructor, and only if the config says so.
        """
        options, is_main = self._job.loader, samples is self._samples
        worker_options: dict[str, Any] = {}
        if self._count:
            worker_options = {
                "persistent_workers": options.persistent_workers and is_main,
                "prefetch_factor": options.prefetch,
                "multiprocessing_context": options.multiprocessing_context,
                "worker_init_fn": _init_worker,
            }
        with _ignore_torch_warning():
            return DataLoader(
                samples,
                batch_size=None,
                sampler=self._sampler,
                num_workers=self._count,
                pin_memory=self._device.type == "cuda" and options.pin_memory and is_main,
                collate_fn=_identity,
                **worker_options,
            )


def _end_workers(iterator: Any) -> None:
    """End the workers of torch's iterator, if it has any. Idempotent."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def _init_worker(number: int) -> None:
    """Make a worker end with its parent: torch's own check takes five seconds, or fails."""
    end_with_parent(partial(remove_shared_memory, [os.getpid()]))


@contextmanager
def _ignore_torch_warning() -> Iterator[None]:
    """Ignore torch's warning of more workers than cores: the engine issues its own warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


def _identity(result: Any) -> Any:
    return result
