"""The threads of the CPU engine. Each uses one core, and keeps its memory from sample to sample."""

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt(3)."""
_MAX_KEPT = 128 << 20
"""Bytes that a thread may keep unused at the end of its heap. Blocks of a quarter and more are
returned to the system at once; glibc allows no higher threshold for them."""


class ThreadPool:
    """Threads that process the samples of batches, each on one core.

    By default, torch starts more threads for every thread that calls it. So each thread of the
    pool calls `torch.set_num_threads(1)`. That call also changes the default for threads that
    start later. The constructor restores the previous number once all threads of the pool run.

    The constructor also makes the process keep memory that its threads free: see `_keep_memory`.

    Args:
        count: The number of threads.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        _keep_memory()
        self._executor = ThreadPoolExecutor(count, "gpupipe-cpu")
        barrier = Barrier(count + 1)
        number = torch.get_num_threads()
        for _ in range(count):
            self._executor.submit(_use_one_core, barrier)
        barrier.wait()
        torch.set_num_threads(number)

    def parallel_for(
        self,
        items: Sequence[_Item],
        task: Callable[[_Item], None],
        then: Callable[[BaseException | None], None],
    ) -> None:
        """Share the calls `task(item)` out among the threads, and call `then` after the last.

        This method returns at once, and may be called again meanwhile. A thread that finds no item
        left goes on to the items of the next call of this method.

        Args:
            items: One item or more.
            task: Called with an item. If it raises, the items that have not started are dropped.
            then: Called with the first exception of `task`, or None, on the thread that ends last.
                Must not raise.
        """
        left, lock = deque(items), Lock()
        errors: list[BaseException] = []
        running = min(self.count, len(items))

        def run() -> None:
            nonlocal running
            while True:
                try:
                    item = left.popleft()
                except IndexError:
                    break
                try:
                    task(item)
                except BaseException as e:  # the executor would drop it, and `then` never run
                    left.clear()
                    errors.append(e)
            with lock:
                running -= 1
                is_last = not running
            if is_last:
                then(next(iter(errors), None))

        for _ in range(running):
            self._executor.submit(run)

    def close(self) -> None:
        """Wait until all calls have ended, then end the threads. Idempotent."""
        self._executor.shutdown(wait=True)


def _use_one_core(barrier: Barrier) -> None:
    # A thread takes over the default number at its first use of torch, which forgets an earlier
    # set_num_threads(). Asking for the number is such a use.
    torch.get_num_threads()
    torch.set_num_threads(1)
    barrier.wait()


def _keep_memory() -> None:
    """Make glibc keep freed memory up to some tens of MiB, instead of returning it to the system.

    The float32 temporaries of one image are some MiB. By default, glibc returns them when they are
    freed, and the system clears each page again at its next use: 1,760 pages for 7 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_KEPT // 4)
        mallopt(_M_TRIM_THRESHOLD, _MAX_KEPT)
