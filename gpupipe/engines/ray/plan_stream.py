"""Feeds plans to an engine as they come, so that its own prefetching works.

An engine reads and decodes ahead on an iterator of plans. A worker gets its plans one by one, and
only while the trainer has room for more batches. The stream gives the engine all plans that wait.
If none waits, it ends the engine's iteration, which finishes the batches that it has begun. So the
engine never waits for a plan while the trainer waits for a batch.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace

from gpupipe.engines.base import Batch, Engine
from gpupipe.errors import TooManyBadError
from gpupipe.sampling.sampler import Plan

Order = tuple[int, int]
"""Plans with the smallest order come first: (run, step)."""


@dataclass(frozen=True)
class MadeBatch:
    """What an engine made of a plan.

    Attributes:
        plan: The plan, without the samples that were skipped.
        batch: The batch; None if all samples were skipped.
    """

    plan: Plan
    batch: Batch | None


@dataclass(eq=False)
class _Pending:
    """A plan whose batch is not made yet."""

    order: Order
    number: int
    plan: Plan
    result: Future[MadeBatch | None] = field(default_factory=Future)

    def __lt__(self, other: _Pending) -> bool:
        return (self.order, self.number) < (other.order, other.number)


class PlanStream:
    """Runs an engine on a thread of its own.

    Args:
        engine: The engine. The stream closes it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._waiting: list[_Pending] = []
        """A heap of the plans that the engine has not taken."""
        self._taken: deque[_Pending] = deque()
        """The plans that the engine has taken and not answered, in its order."""
        self._numbers = itertools.count()
        self._newest_run = -1
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="gpupipe plans", daemon=True)
        self._thread.start()

    def submit(self, plan: Plan, order: Order = (0, 0)) -> Future[MadeBatch | None]:
        """Add a plan.

        Args:
            plan: The plan.
            order: Plans with a smaller one are taken first; equal ones as they come.

        Returns:
            The batch; None if the plan was discarded.
        """
        pending = _Pending(order, next(self._numbers), plan)
        with self._changed:
            if self._is_closed or order[0] < self._newest_run:
                pending.result.set_result(None)
            else:
                self._discard_before(order[0])
                heapq.heappush(self._waiting, pending)
                self._changed.notify_all()
        return pending.result

    def discard_before(self, run: int) -> None:
        """Discard the plans of earlier runs that the engine has not taken yet."""
        with self._changed:
            self._discard_before(run)

    def discard(self, order: Order) -> None:
        """Discard one plan, if the engine has not taken it yet."""
        with self._changed:
            dropped = [p for p in self._waiting if p.order == order]
            self._waiting = [p for p in self._waiting if p.order != order]
            heapq.heapify(self._waiting)
        for pending in dropped:
            pending.result.set_result(None)

    def close(self) -> None:
        """Finish the batches that the engine has begun, and close it. Idempotent."""
        with self._changed:
            self._is_closed = True
            dropped, self._waiting = self._waiting, []
            self._changed.notify_all()
        for pending in dropped:
            pending.result.set_result(None)
        self._thread.join()
        self._engine.close()

    def _discard_before(self, run: int) -> None:
        if run <= self._newest_run:
            return
        self._newest_run = run
        dropped = [p for p in self._waiting if p.order[0] < run]
        self._waiting = [p for p in self._waiting if p.order[0] >= run]
        heapq.heapify(self._waiting)
        for pending in dropped:
            pending.result.set_result(None)

    def _run(self) -> None:
        while self._wait_for_plan():
            try:
                with closing(self._engine.batches(self._take())) as batches:
                    for plan, batch in batches:
                        self._finish(plan, batch)
                        del batch  # its memory can be used again
            except TooManyBadError:
                # The trainer counts the bad samples of all workers: for it, these were skipped.
                self._finish_empty(self._taken)
            except Exception as e:
                self._fail(e)
            else:
                self._finish_empty(self._taken)

    def _wait_for_plan(self) -> bool:
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            return bool(self._waiting)

    def _take(self) -> Iterator[Plan]:
        """Yield the plans that wait. The engine may iterate on a thread of its own."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                pending = heapq.heappop(self._waiting)
                self._taken.append(pending)
            yield replace(pending.plan, tag=pending)

    def _finish(self, plan: Plan, batch: Batch) -> None:
        while (pending := self._taken.popleft()) is not plan.tag:
            self._finish_empty(deque([pending]))
        pending.result.set_result(MadeBatch(replace(plan, tag=pending.plan.tag), batch))

    def _finish_empty(self, plans: deque[_Pending]) -> None:
        """Answer plans of which the engine skipped all samples."""
        while plans:
            pending = plans.popleft()
            pending.result.set_result(MadeBatch(pending.plan.select([]), None))

    def _fail(self, error: Exception) -> None:
        """Give the error to the first plan that is not answered; the others run again."""
        first = self._taken.popleft() if self._taken else None
        with self._changed:
            for pending in self._taken:
                heapq.heappush(self._waiting, pending)
            self._taken.clear()
            if first is None and self._waiting:
                first = heapq.heappop(self._waiting)
        if first is not None:
            first.result.set_exception(error)
