"""A pool of threads, each of which runs torch on one core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import torch


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
        self, count: int, task: Callable[[int], None], then: Callable[[], None]
    ) -> None:
        """Call `task(n)` for each n below `count` on all threads, and `then()` after the last.

        The loops begin in the order of these calls. A thread that finds no index left in one goes
        on to the next.

        Args:
            count: How many calls there are, 1 or more.
            task: Must not raise.
            then: Must not raise. Runs on the thread that ends last.
        """
        workers = min(self.count, count)
        loop = _Loop(count, workers, task, then)
        for _ in range(workers):
            self._executor.submit(loop.run)

    def close(self) -> None:
        """Wait for the calls that run, and end the threads. Idempotent."""
        self._executor.shutdown(wait=True)


class _Loop:
    def __init__(
        self, count: int, workers: int, task: Callable[[int], None], then: Callable[[], None]
    ) -> None:
        self._left = deque(range(count))
        self._task, self._then = task, then
        self._running, self._lock = workers, Lock()

    def run(self) -> None:
        while True:
            try:
                n = self._left.popleft()
            except IndexError:
                break
            self._task(n)
        with self._lock:
            self._running -= 1
            is_last = not self._running
        if is_last:
            self._then()


def _use_one_core(barrier: Barrier) -> None:
    torch.set_num_threads(1)
    barrier.wait()
