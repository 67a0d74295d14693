"""Sends each plan to a worker, and collects the answers in order; adds and removes workers.

A task is a plan that the dispatcher has taken and whose batch the consumer has not taken yet.

1. There are at most `window` tasks.
2. A task goes to the worker with the fewest tasks, and a worker has at most `depth` of them.
3. If a worker dies, Ray reports an error, and the worker's tasks go to other workers.
4. A worker lags if its next answer takes over three times the median time of recent answers. Its
   tasks then go to other workers too, and the first answer counts. A lagging worker gets no new
   task until it answers.
5. With `workers: [min, max]`, an Autoscaler changes the number of workers, depending on how long
   the trainer waits.
"""

import itertools
import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from gpupipe.engines.ray.pool import PoolWorker, RayWorkerPool
from gpupipe.engines.ray.worker import BatchAnswer
from gpupipe.errors import EngineError
from gpupipe.sampling.sampler import Plan

_log = logging.getLogger("gpupipe")
MORE_ABOVE = 0.05
FEWER_BELOW = 0.01
PERIOD = 10.0
"""Seconds of training between two decisions on the number of workers."""
LAG_FACTOR = 3.0
_MIN_LAG = 1.0
"""Seconds without an answer before a worker can lag: a busy machine may pause briefly."""
_TICK = 0.25
_MAX_DEATHS = 5
_TIMES_KEPT = 64
_runs = itertools.count()


@dataclass(eq=False)
class _OpenTask:
    """A plan whose batch the consumer has not taken yet.

    Attributes:
        plan: The plan.
        refs: Ray's reference of the pending answer, by the worker that has the task.
        answer: The first answer; None until it arrives.
        deaths: How many workers died while they had this task.
    """

    plan: Plan
    refs: dict[PoolWorker, Any] = field(default_factory=dict)
    answer: BatchAnswer | None = None
    deaths: int = 0


class PlanDispatcher(threading.Thread):
    """A thread that sends the plans of one iteration to workers, and collects the answers.

    Args:
        pool: The workers.
        plans: The plans. Only this thread iterates over them.
        window: The maximum number of tasks: plans whose batches the consumer has not taken yet.
    """

    def __init__(self, pool: RayWorkerPool, plans: Iterator[Plan], window: int) -> None:
        super().__init__(name="gpupipe ray dispatcher", daemon=True)
        self._pool, self._plans, self._window = pool, plans, window
        self._run = next(_runs)
        self._steps = itertools.count()
        self._changed = pool.changed
        self._open: dict[int, _OpenTask] = {}
        self._times: deque[float] = deque(maxlen=_TIMES_KEPT)
        self._answers: deque[tuple[int, PoolWorker, Future[BatchAnswer | None]]] = deque()
        """The answers that this thread has not processed yet, with their steps and workers."""
        self._wakeup = threading.Event()
        self._has_more = True
        self._is_ended = False
        self._error: Exception | None = None

    @property
    def tasks_out(self) -> int:
        """The number of tasks: plans whose batches the consumer has not taken yet."""
        return len(self._open)

    def take(self) -> tuple[Plan, BatchAnswer] | None:
        """Wait for the next plan's answer, and return both; None after the last, or after `end`.

        Raises:
            Exception: The error that ended the dispatcher or the iterator of plans.
        """
        with self._changed:
            while not self._is_ended:
                first = next(iter(self._open), None)
                if first is not None and (answer := self._open[first].answer) is not None:
                    task = self._open.pop(first)
                    self._wakeup.set()
                    return task.plan, answer
                if self._error is not None:
                    raise self._error
                if first is None and not self._has_more:
                    return None
                self._changed.wait()
        return None

    def end(self) -> None:
        """End the thread, and discard all tasks. Idempotent."""
        with self._changed:
            if not self._is_ended:
                self._is_ended = True
                self._open.clear()
                self._answers.clear()
                for worker in self._pool.ready:
                    worker.out.clear()
                    worker.actor.discard_before.remote(self._run + 1)
                self._changed.notify_all()
        self._wakeup.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._is_ended and self._error is None:
                self._wakeup.clear()
                self._pool.poll()
                with self._changed:
                    while self._answers and not self._is_ended:
                        self._process(*self._answers.popleft())
                    self._assign()
                    self._changed.notify_all()
                self._take_plans()
                self._wakeup.wait(_TICK)
        except Exception as e:
            with self._changed:
                self._error = e
                self._changed.notify_all()

    def _take_plans(self) -> None:
        """Take plans until there are `window` tasks; send each to a worker that has room for it."""
        while self._has_more and not self._is_ended and len(self._open) < self._window:
            plan = next(self._plans, None)
            with self._changed:
                if plan is None:
                    self._has_more = False
                    self._changed.notify_all()
                elif not self._is_ended:
                    self._open[next(self._steps)] = _OpenTask(plan)
                    self._assign()

    def _assign(self) -> None:
        """Send each unanswered task that no worker has, or that only lagging workers have.

        Stop at the first task for which no worker has room.
        """
        lagging = self._find_lagging()
        for step, task in self._open.items():
            if task.answer is None and lagging.issuperset(task.refs):
                able = [
                    worker
                    for worker in self._pool.ready
                    if len(worker.out) < self._pool.depth
                    and not worker.is_leaving
                    and worker not in lagging
                ]
                if not able:
                    return
                self._send(step, task, min(able, key=lambda worker: len(worker.out)))

    def _find_lagging(self) -> set[PoolWorker]:
        """Return the workers that lag: their next answer takes over 3 times the median time."""
        if not self._times:
            return set()
        patience = max(_MIN_LAG, LAG_FACTOR * statistics.median(self._times))
        since = time.monotonic() - patience
        return {worker for worker in self._pool.ready if worker.out and worker.answered < since}

    def _send(self, step: int, task: _OpenTask, worker: PoolWorker) -> None:
        if not worker.out:
            worker.answered = time.monotonic()
        worker.out.add(step)
        task.refs[worker], answer = worker.send(self._run, step, task.plan)
        answer.add_done_callback(partial(self._receive, step, worker))

    def _receive(self, step: int, worker: PoolWorker, answer: Future[BatchAnswer | None]) -> None:
        """Queue an answer of a worker, and wake the dispatcher's thread.

        Ray calls this method on Ray's message thread. So the method may neither call Ray nor wait
        for a lock that another thread holds while it calls Ray.
        """
        if not self._is_ended:
            self._answers.append((step, worker, answer))
            self._wakeup.set()

    def _process(self, step: int, worker: PoolWorker, answer: Future[BatchAnswer | None]) -> None:
        error = answer.exception()
        if error is None:
            self._accept(step, worker, answer.result())
        elif isinstance(error, ray.exceptions.RayActorError):
            first_line = next(iter(str(error).splitlines()), type(error).__name__)
            self._pool.remove(worker, first_line.rstrip(".: "))
            for lost in list(worker.out):
                self._requeue(lost, worker, is_death=True)
        elif isinstance(error, ray.exceptions.RayError) and not isinstance(
            error, ray.exceptions.RayTaskError
        ):
            self._requeue(step, worker, is_death=False)  # its answer is lost
        else:
            self._error = EngineError(f"a Ray worker on node {worker.facts.node}: {error}")

    def _accept(self, step: int, worker: PoolWorker, answer: BatchAnswer | None) -> None:
        now = time.monotonic()
        if step in worker.out:
            worker.out.remove(step)
            self._times.append(now - worker.answered)
            worker.answered = now
        task = self._open.get(step)
        if task is None or task.answer is not None or answer is None:
            return
        task.answer = answer
        for other in task.refs:
            if other is not worker:
                other.actor.discard.remote(self._run, step)
        task.refs.clear()

    def _requeue(self, step: int, worker: PoolWorker, is_death: bool) -> None:
        """Take a task back if its worker died or its answer is lost; `_assign` sends it again."""
        worker.out.discard(step)
        task = self._open.get(step)
        if task is None or task.answer is not None or task.refs.pop(worker, None) is None:
            return
        task.deaths += is_death
        if task.deaths >= _MAX_DEATHS:
            self._error = EngineError(
                f"{task.deaths} Ray workers ended while they made the same batch, whose first "
                f"sample is row {int(task.plan.ids[0])}: a file may crash the decoder, or the "
                "nodes lack memory; the logs of Ray say how the processes ended"
            )


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
        """Add or remove at most one worker, given the share of its time that the trainer waits."""
        count, (smallest, largest) = self._pool.target, self._limits
        wanted = count + (share > MORE_ABOVE) - (share < FEWER_BELOW)
        wanted = min(largest, max(smallest, wanted))
        if wanted != count:
            _log.warning(
                f"gpupipe: the trainer waits for data in {100 * share:.1f} % of its time: {wanted} "
                f"instead of {count} Ray workers"
            )
            self._pool.resize(wanted)
