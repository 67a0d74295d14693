"""Which worker gets a task: on a cluster whose workers die and lag, and among workers that only
remember what was sent to them. How the number of workers follows the trainer's waiting.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from gpupipe.engines.ray.dispatcher import PERIOD, Autoscaler, PlanDispatcher, _OpenTask
from gpupipe.engines.ray.engine import RayEngine
from gpupipe.engines.ray.pool import PoolWorker
from gpupipe.engines.ray.status import WaitMeter
from gpupipe.sampling.sampler import Plan
from helpers.loaders import load
from helpers.ray_batches import PIPELINE, assert_same, batches, local_batches, ray_options
from helpers.ray_cluster import RayCluster


class Silent(PoolWorker):
    """A worker that never answers."""

    def __init__(self) -> None:
        nothing: Any = SimpleNamespace()
        worker: Any = SimpleNamespace(node="node")
        super().__init__(nothing, worker)
        self.sent: list[int] = []

    def send(self, run: int, step: int, plan: Plan) -> tuple[Any, Future[Any]]:
        self.sent.append(step)
        return object(), Future()

    def lag(self) -> None:
        self.answered -= 1000


def test_a_task_whose_workers_all_lag_goes_to_a_third() -> None:
    first, second, third = Silent(), Silent(), Silent()
    pool: Any = SimpleNamespace(changed=threading.Condition(), ready=[first, second], depth=4)
    plan = Plan(0, np.arange(2), 2, True)
    dispatcher = PlanDispatcher(pool, iter([]), 4)
    dispatcher._times.append(0.1)
    dispatcher._open[0] = _OpenTask(plan)
    dispatcher._assign()
    first.lag()
    dispatcher._assign()
    dispatcher._assign()
    assert (first.sent, second.sent) == ([0], [0]), "once to each"
    second.lag()
    dispatcher._assign()
    pool.ready.append(third)
    dispatcher._assign()
    dispatcher._assign()
    assert (first.sent, second.sent, third.sent) == ([0], [0], [0])


def pids(loader: Any) -> list[int]:
    """The processes of the loader's workers."""
    engine = loader.engine
    assert isinstance(engine, RayEngine)
    return [worker.facts.pid for worker in engine.pool.ready]


def test_killed_actors_and_a_removed_node_change_no_bit(
    cluster: RayCluster, faces: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with load(faces, PIPELINE, **ray_options(2)) as loader:
        for epoch in range(10):  # until a worker has something to do when it is killed
            actual = []
            for number, batch in enumerate(loader):
                actual.append({name: tensor.clone() for name, tensor in batch.items()})
                if number == 1:
                    os.kill(pids(loader)[0], signal.SIGKILL)
            assert_same(actual, local_batches(faces, PIPELINE, epoch=epoch))
            if "go to others" in caplog.text:
                break
        assert "go to others" in caplog.text
        actual = []
        cluster.add_node()
        for number, batch in enumerate(loader):
            actual.append({name: tensor.clone() for name, tensor in batch.items()})
            if number == 1:
                cluster.remove_node(cluster.nodes[0])
        assert_same(actual, local_batches(faces, PIPELINE, epoch=epoch + 1))


def test_the_tasks_of_a_worker_that_lags_go_to_another(cluster: RayCluster, faces: Path) -> None:
    expected = local_batches(faces, PIPELINE)
    with load(faces, PIPELINE, **ray_options(2)) as loader:
        iterator = iter(loader)
        actual = [{name: tensor.clone() for name, tensor in next(iterator).items()}]
        paused = pids(loader)[0]
        os.kill(paused, signal.SIGSTOP)
        try:
            actual += batches(iterator)
        finally:
            os.kill(paused, signal.SIGCONT)
        assert_same(actual, expected)


class Pool:
    """Counts workers; `is_settled` says whether they are ready."""

    target = 1
    is_settled = True

    def resize(self, count: int) -> None:
        self.target = count


class Trainer:
    """A trainer that takes batches on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pool: Any = Pool()
        self.meter = WaitMeter(Autoscaler(self.pool, (1, 3)).step, lambda: self.now)

    def train(self, share: float, steps: int = int(PERIOD), validation: float = 0.0) -> None:
        """Take a batch, and then one a second in an epoch of `steps` steps.

        Args:
            share: The share of each second that the trainer waits.
            steps: Seconds.
            validation: Seconds of use of the last batch.
        """

        def deliver() -> Iterator[tuple[Plan, dict[str, Any]]]:
            for step in range(steps + 1):
                self.now += share
                yield Plan(0, np.zeros(1, np.int64), 0, step == steps), {}

        for plan, _ in self.meter.measure(deliver()):
            self.now += validation if plan.last else 1 - share


def test_workers_follow_the_waiting_from_1_to_3_and_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer, counts = Trainer(), []
    with caplog.at_level(logging.WARNING, "gpupipe"):
        for share in (0.06, 0.5, 0.5, 0.02, 0.005, 0.0, 0.0):
            trainer.train(share)
            counts.append(trainer.pool.target)
    assert counts == [2, 3, 3, 3, 2, 1, 1]
    assert len(caplog.records) == 4
    assert "6.0 %" in caplog.text and "2 instead of 1 Ray workers" in caplog.text


def test_the_time_between_epochs_does_not_count() -> None:
    trainer = Trainer()
    trainer.train(0.06, 5, validation=1000)
    trainer.train(0.06, 4)
    assert trainer.pool.target == 1
    trainer.train(0.06, 1)
    assert trainer.pool.target == 2


def test_nothing_is_decided_before_a_new_worker_is_ready() -> None:
    trainer = Trainer()
    trainer.train(1.0)
    trainer.pool.is_settled = False
    trainer.train(1.0, 5 * int(PERIOD))
    assert trainer.pool.target == 2
    trainer.pool.is_settled = True
    trainer.train(1.0)
    assert trainer.pool.target == 3


def test_waiting_is_measured_apart_from_use() -> None:
    trainer = Trainer()
    trainer.train(0.25, 2, validation=0.75)
    meter = trainer.meter
    assert (meter.batches, meter.waited, meter.used) == (3, 0.75, 2.25)
    assert meter.wait_share == 0.25
