"""The threads of the CPU engine. Each uses one core, and keeps its memory from sample to sample."""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Barrier, Lock, Thread
from typing import TypeVar

import torch

from gpupipe.runtime.process import ExitHandler
from gpupipe.runtime.systems import find_c_function

_Item = TypeVar("_Item")
_Queue = SimpleQueue[Callable[[], None] | None]
"""Of functions that the threads call; None ends a thread. A ThreadPoolExecutor, with its Future and
its semaphore for each function, holds the GIL ten times as long."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
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
        self._queue: _Queue = SimpleQueue()
        barrier = Barrier(count + 1)
        number = torch.get_num_threads()
        # Daemons, since Python waits for all others before it calls what ends these.
        self._threads = [
            Thread(target=_work, args=(self._queue, barrier), name=f"gpupipe-cpu_{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()
        barrier.wait()
        torch.set_num_threads(number)
        self._end = weakref.finalize(self, _end, self._queue, count)
        # At exit, Python ends daemons wherever they wait for the GIL: inside of C++, that aborts.
        self._at_exit = ExitHandler(self.close)

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
                except BaseException as e:  # it would end the thread, and `then` never run
                    left.clear()
                    errors.append(e)
            with lock:
                running -= 1
                is_last = not running
            if is_last:
                then(next(iter(errors), None))

        for _ in range(running):
            self._queue.put(run)

    def close(self) -> None:
        """Wait until all calls have ended, then end the threads. Idempotent."""
        self._at_exit.cancel()
        self._end()
        for thread in self._threads:
            thread.join()


def _work(queue: _Queue, barrier: Barrier) -> None:
    _use_one_core()
    barrier.wait()
    while (function := queue.get()) is not None:
        function()
        del function  # and with it the batch that it belongs to


def _end(queue: _Queue, count: int) -> None:
    for _ in range(count):
        queue.put(None)


def _use_one_core() -> None:
    # A thread takes over the default number at its first use of torch, which forgets an earlier
    # set_num_threads(). Asking for the number is such a use.
    torch.get_num_threads()
    torch.set_num_threads(1)


def _keep_memory() -> None:
    """Make glibc keep freed memory up to some tens of MiB, instead of returning it to the system.

    The float32 temporaries of one image are some MiB. By default, glibc returns them when they are
    freed, and the system clears each page again at its next use: 1,760 pages for 7 MB.

    The memory of a thread consists of heaps of 64 MiB. glibc returns a heap that is unused as a
    whole, unless less than the padding is unused at the end of the heap before it. So the padding
    is as large as the largest block: where a block no longer fits, at most that much is left.
    """
    if mallopt := find_c_function("mallopt"):
        mallopt(_M_MMAP_THRESHOLD, _MAX_KEPT // 4)
        mallopt(_M_TRIM_THRESHOLD, _MAX_KEPT)
        mallopt(_M_TOP_PAD, _MAX_KEPT // 4)
