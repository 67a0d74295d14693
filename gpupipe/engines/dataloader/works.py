"""The sampler of torch's DataLoader: turns plans into work items, and keeps the plans in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from gpupipe.engines.base import Job
from gpupipe.engines.dataloader.samples import WorkItem
from gpupipe.errors import StepError
from gpupipe.sampling.sampler import Plan


class Works:
    """The sampler of torch's DataLoader: yields a work item for each plan.

    Attributes:
        in_flight: Plans that were taken and whose batches torch has not returned, in order.
        finished: Number of batches that torch has returned in this iteration.
        failed: The error that ended the iteration early. It is stored, because an exception in the
            sampler would leave torch's iterator half initialised.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._taken_ahead: list[Plan] = []
        self._plans: Iterator[Plan] = iter(())
        self.in_flight: deque[Plan] = deque()
        self.finished = 0
        self.failed: StepError | None = None

    def start(self, plans: Iterator[Plan], ahead: int) -> None:
        """Start an iteration.

        Args:
            plans: The plans, in order.
            ahead: Number of plans that torch takes when its iterator is created.
        """
        self._plans = plans
        self.failed = None
        self.finished = 0
        # Take them before torch does: if a worker dies meanwhile, torch raises inside the sampler,
        # and that would end the generator `plans` for good.
        self._taken_ahead = list(islice(plans, ahead))
        self.in_flight = deque(self._taken_ahead)

    def __iter__(self) -> Iterator[WorkItem]:
        for plan in chain(self._taken_ahead, self._take_rest()):
            try:
                work = self.create_item(plan)
            except StepError as e:
                self.failed = e
                return
            yield work

    def _take_rest(self) -> Iterator[Plan]:
        for plan in self._plans:
            self.in_flight.append(plan)
            yield plan

    def create_item(self, plan: Plan) -> WorkItem:
        """Return the work item of a plan: columns and drawn parameters. Raises StepError."""
        job = self._job
        return WorkItem(
            [job.index.columns[name].take(plan.ids) for name in job.pipeline.fields],
            {
                name: [step.parameters for step in steps]
                for name, steps in job.steps_for(plan).items()
            },
            job.pipeline.phase_of(plan.epoch),
        )

    def finish(self) -> Plan:
        """Remove and return the plan whose batch torch has just returned."""
        self.finished += 1
        return self.in_flight.popleft()

    def plans_of_workers(self, iterator: Any, numbers: set[int | None]) -> list[Plan]:
        """Return the plans in flight that these workers got; all plans in flight if not known.

        Args:
            iterator: Torch's iterator.
            numbers: Numbers of the workers.
        """
        # By number of the task: (worker,), or (worker, batch) if the batch has arrived.
        tasks = getattr(iterator, "_task_info", {})
        plans = [
            p
            for n, p in enumerate(self.in_flight, self.finished)
            if len(t := tasks.get(n, ())) == 1 and t[0] in numbers
        ]
        return plans or list(self.in_flight)
