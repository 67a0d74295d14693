"""Which worker gets a task, without a cluster: workers that only remember what was sent to them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from gpupipe.engines.ray.dispatcher import PlanDispatcher, _OpenTask
from gpupipe.engines.ray.pool_worker import PoolWorker
from gpupipe.sampling.sampler import Plan


class Silent(PoolWorker):
    """A worker that never answers."""

    def __init__(self) -> None:
        nothing: Any = SimpleNamespace()
        worker: Any = SimpleNamespace(node="node")
        super().__init__(nothing, worker, "cpu")
        self.sent: list[int] = []

    def send(self, task: Any) -> tuple[Any, Future[Any]]:
        self.sent.append(task.step)
        return object(), Future()

    def lag(self) -> None:
        self.answered -= 1000


def test_a_task_whose_workers_all_lag_goes_to_a_third() -> None:
    first, second, third = Silent(), Silent(), Silent()
    pool: Any = SimpleNamespace(
        changed=threading.Condition(), ready=[first, second], job=SimpleNamespace(key="", depth=4)
    )
    plan = Plan(0, np.arange(2), 2, True)
    dispatcher = PlanDispatcher(pool, iter([]), 4)
    dispatcher._times.append(0.1)
    dispatcher._open[0] = _OpenTask(plan)
    dispatcher._assign()
    first.lag()
    dispatcher._reassign_lagging()
    dispatcher._reassign_lagging()
    assert (first.sent, second.sent) == ([0], [0]), "once to each"
    second.lag()
    dispatcher._reassign_lagging()
    pool.ready.append(third)
    dispatcher._reassign_lagging()
    dispatcher._reassign_lagging()
    assert (first.sent, second.sent, third.sent) == ([0], [0], [0])
