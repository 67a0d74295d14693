"""What happens to the workers of a Ray cluster: killed, paused, their nodes removed and added."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import ray

from gpupipe.engines.ray.dispatcher import PlanDispatcher
from helpers.ray_cluster import RayCluster

EVENTS = ("kill process", "kill actor", "pause", "remove node", "add node")


class HasWorkers(Protocol):
    """A trainer."""

    @property
    def workers(self) -> list[Any]:
        """The workers that are ready."""
        ...


class Disasters:
    """Does the events of a schedule.

    Args:
        cluster: The cluster.
        trainers: Their workers are hit.
        dice: Chooses whom.
        counts: Counts what happened.
    """

    def __init__(
        self,
        cluster: RayCluster,
        trainers: Sequence[HasWorkers],
        dice: random.Random,
        counts: Counter[str],
    ) -> None:
        self._cluster, self._dice, self._counts = cluster, dice, counts
        self._trainers = list(trainers)
        self._repairs: list[tuple[float, Any]] = []
        self.pids: set[int] = set()

    def happen(self, event: str) -> None:
        """Let an event happen, if there is whom it can hit."""
        workers = [worker for trainer in self._trainers for worker in trainer.workers]
        self.pids |= {worker.facts.pid for worker in workers}
        if event == "add node":
            self._cluster.add_node()
        elif event == "remove node":
            if not self._cluster.nodes:
                return
            self._cluster.remove_node(self._dice.choice(self._cluster.nodes))
            self._later(self._dice.uniform(0, 4), self._cluster.add_node)
        elif not workers:
            return
        elif event == "kill actor":
            ray.kill(self._dice.choice(workers).actor)
        else:
            pid = self._dice.choice(workers).facts.pid
            if event == "pause":
                _send_signal(pid, signal.SIGSTOP)
                self._later(self._dice.uniform(0.1, 6), lambda: _send_signal(pid, signal.SIGCONT))
            else:
                _send_signal(pid, signal.SIGKILL)
        self._counts[event] += 1

    def _later(self, seconds: float, repair: Any) -> None:
        self._repairs.append((time.monotonic() + seconds, repair))

    def repair(self, is_end: bool = False) -> None:
        """Repair what is due, or everything. Only the main thread can start a node of Ray."""
        now = float("inf") if is_end else time.monotonic()
        due = [repair for when, repair in self._repairs if when <= now]
        self._repairs = [(when, repair) for when, repair in self._repairs if when > now]
        for repair in due:
            repair()

    def end(self) -> None:
        """Repair everything, note the processes of the workers, and let go of the trainers."""
        self.repair(is_end=True)
        workers = [worker for trainer in self._trainers for worker in trainer.workers]
        self.pids |= {worker.facts.pid for worker in workers}
        self._trainers.clear()


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def count_sends(counts: Counter[str]) -> Any:
    """Count the tasks that are sent, and those that are sent again."""
    send = PlanDispatcher._send

    def counted(self: PlanDispatcher, step: int, *rest: Any) -> None:
        key = (self._run, step)
        counts["tasks"] += 1
        counts["repeated tasks"] += key in seen
        seen.add(key)
        send(self, step, *rest)

    seen: set[tuple[int, int]] = set()
    PlanDispatcher._send = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        PlanDispatcher._send = send  # type: ignore[method-assign]
