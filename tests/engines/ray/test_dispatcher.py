"""Which worker gets a task: on a cluster whose workers die and lag, and among workers that only
remember what was sent to them.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from gpupipe.engines.ray.dispatcher import PlanDispatcher, _OpenTask
from gpupipe.engines.ray.engine import RayEngine
from gpupipe.engines.ray.pool import PoolWorker
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
    expected = local_batches(faces, PIPELINE)
    with load(faces, PIPELINE, **ray_options(2)) as loader:
        actual = []
        for number, batch in enumerate(loader):
            actual.append({name: tensor.clone() for name, tensor in batch.items()})
            if number == 1:
                os.kill(pids(loader)[0], signal.SIGKILL)
        assert_same(actual, expected)
        assert "go to others" in caplog.text
        actual = []
        cluster.add_node()
        for number, batch in enumerate(loader):
            actual.append({name: tensor.clone() for name, tensor in batch.items()})
            if number == 1:
                cluster.remove_node(cluster.nodes[0])
        assert_same(actual, local_batches(faces, PIPELINE, epoch=1))


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
