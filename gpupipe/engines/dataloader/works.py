"""What torch's DataLoader samples: the work of plans.

Which of them are in flight is known here, in the parent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.index import Column
from gpupipe.engines.base import LoadSpec
from gpupipe.engines.dataloader.samples import SampleLocation, WorkItem
from gpupipe.errors import StepError
from gpupipe.sampling.sampler import Plan


class Works:
    """DataLoader's sampler: the work of the plans that it is given, and in `flight` those that it
    took and that are not finished.
    """

    def __init__(self, job: LoadSpec) -> None:
        self._job = job
        self._first: list[Plan] = []
        self._plans: Iterator[Plan] = iter(())
        self.flight: deque[Plan] = deque()
        self.finished = 0
        self.failed: StepError | None = None
        """Why it ended before the plans. Raised here, it would leave torch's iterator half made."""

    def start(self, plans: Iterator[Plan], ahead: int) -> None:
        """Begin with these plans. ahead: how many torch takes when it begins."""
        self._plans = plans
        self.failed = None
        self.finished = 0
        # A worker that dies while torch takes these raises there, which would end a generator of
        # plans.
        self._first = list(islice(plans, ahead))
        self.flight = deque(self._first)

    def __iter__(self) -> Iterator[WorkItem]:
        for plan in chain(self._first, self._taken()):
            try:
                work = self.work(plan)
            except StepError as e:
                self.failed = e
                return
            yield work

    def _taken(self) -> Iterator[Plan]:
        for plan in self._plans:
            self.flight.append(plan)
            yield plan

    def work(self, plan: Plan) -> WorkItem:
        """Return what is to be done for a plan. Raises StepError."""
        job = self._job
        parameters = [
            [
                entry.parameters(job.loader.seed, plan.epoch, plan.ids)
                for entry in job.pipeline.on(name)
            ]
            for name in job.pipeline.fields
        ]
        return WorkItem(
            [_places(job.index.columns[name], plan.ids) for name in job.pipeline.fields], parameters
        )

    def finish(self) -> Plan:
        """Return the plan whose batch torch returned."""
        self.finished += 1
        return self.flight.popleft()

    def of_workers(self, iterator: Any, numbers: set[int | None]) -> list[Plan]:
        """Return the plans that these workers got and whose batches did not arrive; all where that
        cannot be told.
        """
        tasks = getattr(
            iterator, "_task_info", {}
        )  # by the number of the task: the worker, and the batch if it arrived
        theirs = [
            p
            for n, p in enumerate(self.flight, self.finished)
            if len(t := tasks.get(n, ())) == 1 and t[0] in numbers
        ]
        return theirs or list(self.flight)


def _places(column: Column, ids: NDArray[np.int64]) -> list[SampleLocation]:
    array = column.array
    return [
        SampleLocation(column.span(i), None if array is None else array.shape_of(i))
        for i in ids.tolist()
    ]
