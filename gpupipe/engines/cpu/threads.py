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

    def sweep(self, count: int, work: Callable[[int], None], then: Callable[[], None]) -> None:
        """Call `work(n)` for each n below `count` on all threads, and `then()` after the last.

        Sweeps begin in the order of these calls. A thread that finds no work left in one goes on
        to the next.

        Args:
            count: How many calls there are.
            work: Must not raise.
            then: Must not raise. Runs on the thread that ends last.
        """
        workers = max(1, min(self.count, count))
        sweep = _Sweep(count, workers, work, then)
        for _ in range(workers):
            self._executor.submit(sweep.run)

    def close(self) -> None:
        """Wait for the calls that run, and end the threads. Idempotent."""
        self._executor.shutdown(wait=True)


class _Sweep:
    def __init__(
        self, count: int, workers: int, work: Callable[[int], None], then: Callable[[], None]
    ) -> None:
        self._left = deque(range(count))
        self._work, self._then = work, then
        self._running, self._lock = workers, Lock()

    def run(self) -> None:
        while True:
            try:
                n = self._left.popleft()
            except IndexError:
                break
            self._work(n)
        with self._lock:
            self._running -= 1
            is_last = not self._running
        if is_last:
            self._then()


def _use_one_core(barrier: Barrier) -> None:
    torch.set_num_threads(1)
    barrier.wait()
