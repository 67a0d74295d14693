"""The threads of the CPU engine: one core each, in order, and memory that stays."""

import asyncio
import ctypes
import resource
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu.threads import ThreadPool
from helpers import forked_python


def run_all(count: int, items: Any, task: Callable[[Any], None]) -> None:
    """Run a task on all items in a pool of `count` threads."""
    pool, is_done = ThreadPool(count), threading.Event()
    pool.parallel_for(items, task, lambda error: is_done.set())
    assert is_done.wait(300)
    pool.close()


def test_torch_uses_one_core_in_each_thread() -> None:
    """Also after the first use of torch, which takes over the number of the process."""
    numbers: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)

    def note(item: int) -> None:
        torch.ones(1 << 16).add_(1)
        numbers.append(torch.get_num_threads())

    try:
        run_all(2, range(8), note)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert numbers == [1] * 8


def test_then_is_called_after_the_last_item() -> None:
    done: list[int] = []
    run_all(3, range(20), done.append)
    assert sorted(done) == list(range(20))


def test_an_exception_of_a_task_ends_the_call() -> None:
    """The items that have not started are dropped, and the pool goes on to other calls."""
    pool, is_done = ThreadPool(2), threading.Event()
    errors: list[BaseException | None] = []
    started: list[int] = []

    def fail(item: int) -> None:
        started.append(item)
        raise asyncio.CancelledError("of a task")  # a BaseException

    def end(error: BaseException | None) -> None:
        errors.append(error)
        is_done.set()

    pool.parallel_for(range(8), fail, end)
    assert is_done.wait(300)
    assert str(errors[0]) == "of a task"
    assert len(started) <= 2
    is_done.clear()
    pool.parallel_for(range(8), started.append, end)
    assert is_done.wait(300)
    assert errors[1] is None
    pool.close()


def test_a_program_ends_after_the_calls_of_its_pools() -> None:
    """A thread that Python ends while it is inside of C++ would abort the program."""
    program = """
import threading, time
from gpupipe.engines.cpu.threads import ThreadPool

started = threading.Event()
def work(item):
    started.set()
    time.sleep(0.5)
pool = ThreadPool(2)
pool.parallel_for([1, 2], work, lambda error: print("all are done"))
started.wait()
"""
    done = forked_python.run(["-c", program])
    assert (done.returncode, done.stdout, done.stderr) == (0, "all are done\n", "")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone has it")
@pytest.mark.parametrize("others", [0, 46, 54])
def test_freed_memory_is_used_again_without_a_fault_for_each_page(others: int) -> None:
    """Three arrays of 1,700 pages, as the float32 temporaries of an image are.

    Beside `others` MiB that the thread holds, which may end near the end of a heap of 64 MiB.
    """
    faults: list[int] = []
    held: list[NDArray[np.float32]] = []

    def allocate(item: int) -> None:
        held.extend(np.ones(1 << 18, np.float32) for _ in range(others - len(held)))
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        _ = [np.ones(7_000_000 // 4, np.float32) for _ in range(3)]
        del _
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

    run_all(1, range(20), allocate)
    assert sorted(faults)[10] < 100, faults
