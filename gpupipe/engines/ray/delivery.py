"""Finishes the batches of workers in the order of the plans, and measures the trainer's waiting.

With `workers: [min, max]`, an Autoscaler adds and removes workers by the measured waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue

import torch

from gpupipe.engines.bad_samples import Quarantine
from gpupipe.engines.base import Batch, Job
from gpupipe.engines.batch import labels_and_values
from gpupipe.engines.last_steps import BatchFinisher
from gpupipe.engines.ray.dispatcher import PlanDispatcher
from gpupipe.engines.ray.pool import RayWorkerPool
from gpupipe.engines.ray.worker import BatchAnswer, unpack
from gpupipe.sampling.sampler import Plan

_log = logging.getLogger("gpupipe")
MORE_ABOVE = 0.05
FEWER_BELOW = 0.01
PERIOD = 10.0
"""Seconds of training between two decisions on the number of workers."""
_CPU = torch.device("cpu")
_Finished = tuple[Plan, Batch]


class Delivery(threading.Thread):
    """A thread that finishes the batches from workers before the consumer asks for them.

    Iterating over it yields each plan with its finished batch, in the order of the plans.

    Args:
        job: The job with all steps, those of the workers and those of the trainer.
        dispatcher: Collects the workers' answers. This thread starts and ends it.
        finish: Runs the trainer's steps, and copies the batch to the trainer's device.
        quarantine: Lists the samples that workers skipped.

    Attributes:
        dispatcher: The dispatcher that collects the workers' answers.
    """

    def __init__(
        self, job: Job, dispatcher: PlanDispatcher, finish: BatchFinisher, quarantine: Quarantine
    ) -> None:
        super().__init__(name="gpupipe ray delivery", daemon=True)
        self._job, self.dispatcher = job, dispatcher
        self._finish, self._quarantine = finish, quarantine
        self._room = threading.Semaphore(job.loader.prefetch)
        """Counts how many more batches the thread may finish before the consumer takes one."""
        self._finished: SimpleQueue[_Finished | Exception | None] = SimpleQueue()
        """The finished batches; then None, or the error that ended the thread."""

    def __iter__(self) -> Iterator[_Finished]:
        while (finished := self._finished.get()) is not None:
            if isinstance(finished, Exception):
                raise finished
            self._room.release()
            yield finished
            del finished

    def end(self) -> None:
        """End the thread and the dispatcher, and drop all batches. Idempotent."""
        self.dispatcher.end()
        self._room.release()
        self.join()
        self._finished = SimpleQueue()
        self._finished.put(None)

    def run(self) -> None:
        error: Exception | None = None
        self.dispatcher.start()
        try:
            while self._room.acquire() and (answered := self.dispatcher.take()) is not None:
                finished = self._to_batch(*answered)
                del answered
                if finished is None:
                    self._room.release()
                else:
                    self._finished.put(finished)
                del finished
        except Exception as e:
            error = e
        self._finished.put(error)

    def _to_batch(self, plan: Plan, answer: BatchAnswer) -> _Finished | None:
        """Return the plan and its finished batch; None if all its samples were skipped.

        Raises the answer's error if it has one.
        """
        if answer.error is not None:
            raise answer.error
        for id, reason in answer.skipped.items():
            self._quarantine.add(id, reason)
        if answer.kept is not None:
            plan = plan.select(answer.kept)
            if not len(plan.ids):
                self._quarantine.refuse_to_lose_a_step()
                return None
        fields = {name: unpack(packed) for name, packed in answer.fields.items()}
        tensors = fields | labels_and_values(self._job.index, plan, _CPU)
        return plan, self._finish(tensors, plan)


class Autoscaler:
    """Adds a worker if the trainer waits over 5 % of its time, and removes one if under 1 %.

    It decides after every 10 seconds of training. The time until a new worker is ready does not
    count.

    Args:
        pool: The workers.
        limits: The minimum and the maximum number of workers.
    """

    def __init__(self, pool: RayWorkerPool, limits: tuple[int, int]) -> None:
        self._pool, self._limits = pool, limits
        self._seconds = self._waited = 0.0

    def step(self, waited: float, used: float) -> None:
        """Record a training step; change the number of workers if 10 seconds are recorded.

        Args:
            waited: Seconds that the trainer waited for its batch.
            used: Seconds that the trainer used the previous batch.
        """
        if not self._pool.is_settled:
            self._seconds = self._waited = 0.0
            return
        self._seconds += waited + used
        self._waited += waited
        if self._seconds >= PERIOD:
            share, self._seconds, self._waited = self._waited / self._seconds, 0.0, 0.0
            self._resize(share)

    def _resize(self, share: float) -> None:
        """Change the number of workers by at most one, for a share of the time spent waiting."""
        count, (smallest, largest) = self._pool.target, self._limits
        wanted = count + (share > MORE_ABOVE) - (share < FEWER_BELOW)
        wanted = min(largest, max(smallest, wanted))
        if wanted != count:
            _log.warning(
                f"gpupipe: the trainer waits for data in {100 * share:.1f} % of its time: {wanted} "
                f"instead of {count} Ray workers"
            )
            self._pool.resize(wanted)


class WaitMeter:
    """Measures how long a consumer waits for batches, and how long it uses them.

    Args:
        autoscaler: Gets the measured times and changes the number of workers; None if that number
            is fixed. It does not get the first batch of an epoch or iteration, so that the time
            between epochs does not count.
        clock: Returns the time in seconds.

    Attributes:
        batches: The number of batches that were delivered.
        waited: Seconds that the consumer spent waiting for batches.
        used: Seconds that the consumer spent between getting a batch and asking for the next.
    """

    def __init__(
        self, autoscaler: Autoscaler | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._autoscaler, self._clock = autoscaler, clock
        self.batches = 0
        self.waited = self.used = 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time spent waiting for batches, 0 to 1; 0 before the first batch."""
        total = self.waited + self.used
        return self.waited / total if total else 0.0

    def measure(self, batches: Iterable[_Finished]) -> Iterator[_Finished]:
        """Yield the plans and batches unchanged, and measure the times between them."""
        asked = self._clock()
        used: float | None = None
        for plan, batch in batches:
            delivered = self._clock()
            self.waited += delivered - asked
            self.batches += 1
            if self._autoscaler is not None and used is not None:
                self._autoscaler.step(delivered - asked, used)
            yield plan, batch
            del batch  # its memory is the consumer's alone
            asked = self._clock()
            self.used += asked - delivered
            used = None if plan.last else asked - delivered
