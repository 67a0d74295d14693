"""A pool of threads, each of which runs torch on one core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import TypeVar

import torch

_Item = TypeVar("_Item")


class ThreadPool:
    """Threads that share out the samples of batches.

    torch starts threads of its own for each thread that calls it, unless that thread has said
    `torch.set_num_threads(1)`. That call also sets the number for threads that start later, so the
    constructor sets it back when all threads of the pool run.

    Args:
        count: How many threads there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._executor = ThreadPoolExecutor(count, "gpupipe-cpu")
        barrier = Barrier(count + 1)
        number = torch.get_num_threads()
        for _ in range(count):
            self._executor.submit(_use_one_core, barrier)
        barrier.wait()
        torch.set_num_threads(number)

    def parallel_for(
        self, items: Sequence[_Item], task: Callable[[_Item], None], then: Callable[[], None]
    ) -> None:
        """Call `task(item)` for each item on all threads, and `then()` after the last.

        The loops begin in the order of these calls. A thread that finds no item left in one goes
        on to the next.

        Args:
            items: One item or more.
            task: Must not raise.
            then: Must not raise. Runs on the thread that ends last.
        """
        left, lock = deque(items), Lock()
        running = min(self.count, len(items))

        def run() -> None:
            nonlocal running
            while True:
                try:
                    item = left.popleft()
                except IndexError:
                    break
                task(item)
            with lock:
                running -= 1
                is_last = not running
            if is_last:
                then()

        for _ in range(running):
            self._executor.submit(run)

    def close(self) -> None:
        """Wait for the calls that run, and end the threads. Idempotent."""
        self._executor.shutdown(wait=True)


def _use_one_core(barrier: Barrier) -> None:
    torch.set_num_threads(1)
    barrier.wait()
