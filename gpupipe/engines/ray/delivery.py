"""Finishes the answers of workers on a thread, in the order of the plans."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

import torch

from gpupipe.engines.bad_samples import Quarantine
from gpupipe.engines.base import Batch, Job
from gpupipe.engines.batch import labels_and_values
from gpupipe.engines.batch_finisher import BatchFinisher
from gpupipe.engines.ray.arrays import unpack
from gpupipe.engines.ray.autoscaling import Autoscaler
from gpupipe.engines.ray.dispatcher import PlanDispatcher
from gpupipe.engines.ray.errors import name_node
from gpupipe.engines.ray.messages import BatchAnswer
from gpupipe.engines.ray.pool_worker import PoolWorker
from gpupipe.sampling.sampler import Plan

_Finished = tuple[Plan, Batch]
_CPU = torch.device("cpu")


class Delivery(threading.Thread):
    """Takes the answers of a dispatcher, and finishes them ahead of the consumer.

    Args:
        job: The whole job.
        dispatcher: What collects the answers. This thread starts and ends it.
        finish: Runs the steps that are left to the trainer.
        quarantine: Lists the samples that were skipped.
        ahead: How many finished batches may wait for the consumer.
        autoscaler: Follows how long the consumer waits; None: the number of workers is fixed.
    """

    def __init__(
        self,
        job: Job,
        dispatcher: PlanDispatcher,
        finish: BatchFinisher,
        quarantine: Quarantine,
        ahead: int,
        autoscaler: Autoscaler | None,
    ) -> None:
        super().__init__(name="gpupipe ray delivery", daemon=True)
        self._job, self._dispatcher, self._finish = job, dispatcher, finish
        self._quarantine, self._ahead, self._autoscaler = quarantine, ahead, autoscaler
        self._changed = threading.Condition()
        self._finished: deque[_Finished] = deque()
        self._error: BaseException | None = None
        self._is_ended = False

    @property
    def tasks_out(self) -> int:
        """How many tasks are sent, or answered and not taken."""
        return self._dispatcher.tasks_out

    def __iter__(self) -> Iterator[_Finished]:
        """Yield the finished batches, in order."""
        starts_epoch = True
        while True:
            if starts_epoch and self._autoscaler is not None:
                self._autoscaler.start()
            since = time.monotonic()
            with self._changed:
                while not self._finished and not self._is_ended:
                    self._changed.wait()
                if not self._finished:
                    break
                finished = self._finished.popleft()
                self._changed.notify_all()
            if self._autoscaler is not None:
                self._autoscaler.step(time.monotonic() - since)
            starts_epoch = finished[0].last
            yield finished
            del finished
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End the thread and the dispatcher, and drop all batches. Idempotent."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._dispatcher.end()
        self.join()
        self._finished.clear()

    def run(self) -> None:
        self._dispatcher.start()
        try:
            while self._wait_for_room() and (taken := self._dispatcher.take()) is not None:
                finished = self._to_batch(*taken)
                del taken
                if finished is not None:
                    with self._changed:
                        self._finished.append(finished)
                        self._changed.notify_all()
                del finished
        except Exception as e:
            self._error = e
        finally:
            with self._changed:
                self._is_ended = True
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            while len(self._finished) >= self._ahead and not self._is_ended:
                self._changed.wait()
            return not self._is_ended

    def _to_batch(self, plan: Plan, answer: BatchAnswer, worker: PoolWorker) -> _Finished | None:
        """Return the finished batch; None if all its samples were skipped."""
        if answer.error is not None:
            raise name_node(answer.error, worker.facts.node, answer.trace)
        for id, reason in answer.skipped.items():
            self._quarantine.add(id, reason)
        if answer.kept is not None:
            plan = plan.select(answer.kept)
            if not len(plan.ids):
                self._quarantine.refuse_to_lose_a_step()
                return None
        fields = {name: unpack(packed) for name, packed in answer.fields.items()}
        tensors = fields | labels_and_values(self._job.index, plan, _CPU)
        return plan, self._finish(tensors, plan.epoch)
