"""Finds DataLoader workers that died, explains why, and removes the files that they left.

With `workers: 0`, `limit_to_one_thread` limits torch to one thread in the parent process, as torch
does in workers.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch

from gpupipe.errors import EngineError

_GUARD = """

    if __name__ == "__main__":
        with gpupipe.load(...) as loader:
            ...  # all that uses the loader

"""
_SHARED_MEMORY = Path("/dev/shm")  # where torch puts the tensors of workers on Linux
_KILLED = re.compile(r"\(pid (\d+)\) is killed by signal: ([^.]+)")
_SECONDS_TO_DIE = 5
_NO_MEMORY = "out of memory, perhaps; try fewer loader.workers or a smaller batch"
_UNFINISHED = "bootstrapping phase"
"""Part of multiprocessing's error for a process that starts another while it imports the script."""


@contextmanager
def limit_to_one_thread() -> Iterator[None]:
    """Limit torch's operators to one thread, as torch does in workers; then restore the number.

    OpenMP's threads wait for each other in every operator. On two cores with another busy process,
    that takes 20 times as long as the work. Changing the number costs less than a microsecond, and
    affects only the calling thread. But a thread that runs its first torch operator in this context
    keeps the limit of one thread for good.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class DeadWorker:
    """A worker process that ended before the iteration did.

    Attributes:
        number: Number of the worker in torch's iterator, from 0; None if it is unknown.
        pid: The worker's process id.
        signal: Name of the signal that killed it, or "".
    """

    number: int | None
    pid: int
    signal: str

    def __str__(self) -> str:
        return (
            f"a DataLoader worker (pid {self.pid}) "
            f"{f'died of {self.signal}' if self.signal else 'exited unexpectedly'}"
        )


def stop_watching(iterator: Any) -> None:
    """Keep torch's SIGCHLD handler from raising an error if a worker of this iterator dies.

    The handler raises in whatever code the main thread runs: in the training step, or in the
    generator of the plans, which an exception ends for good. Without the handler, torch checks its
    workers after five seconds without a batch.
    """
    if getattr(iterator, "_worker_pids_set", False):
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def find_dead_workers(iterator: Any, error: Exception) -> list[DeadWorker]:
    """Return the workers that have died.

    Args:
        iterator: Torch's iterator; None if torch raised `error` before it created one.
        error: The exception from torch or multiprocessing.
    """
    workers = getattr(iterator, "_workers", [])
    if workers and _is_broken(error):  # the connection ends before the process does
        ended = connection.wait([w.sentinel for w in workers], _SECONDS_TO_DIE)
        for worker in (w for w in workers if w.sentinel in ended):
            worker.join(_SECONDS_TO_DIE)  # its files are closed, but it may have no exit code yet
    dead = [
        DeadWorker(n, w.pid, _signal_name(-w.exitcode))
        for n, w in enumerate(workers)
        if w.exitcode is not None
    ]
    if not dead and (killed := _KILLED.search(str(error))):
        number = next((s for s in signal.valid_signals() if signal.strsignal(s) == killed[2]), 0)
        dead = [DeadWorker(None, int(killed[1]), _signal_name(number) or killed[2])]
    return dead


def _signal_name(number: int) -> str:
    if number <= 0:
        return ""
    return next((s.name for s in signal.Signals if s == number), f"signal {number}")


def explain_failure(
    error: Exception, dead: list[DeadWorker], method: str | None, started: bool
) -> EngineError | None:
    """Return the error to raise, if an error of torch's iterator comes from a worker that ended.

    Args:
        error: The exception from torch or multiprocessing.
        dead: The workers that have died.
        method: How workers start: fork, spawn or forkserver; None for the platform's default.
        started: Whether one of the workers has made a batch already.

    Returns:
        The error, with the likely cause; None if no worker's end caused `error`.
    """
    method = get_context(method).get_start_method()
    if _UNFINISHED in str(error):
        return EngineError(
            "a worker that is being started imports the script, and the script starts "
            f"workers of its own: {_advice(method)}"
        )
    if not (dead or _is_broken(error) or "exited unexpectedly" in str(error)):
        return None
    first = next((worker for worker in dead if worker.signal), next(iter(dead), None))
    subject = str(first) if first else "a DataLoader worker ended while it sent a batch"
    if started or method == "fork" or (first and first.signal):
        return EngineError(f"{subject}: {_NO_MEMORY}")
    return EngineError(
        f"no worker could be started ({subject}). The likely cause: {_advice(method)}If it "
        "stands there already, see what the worker printed."
    )


def _is_broken(error: Exception) -> bool:
    """Whether the error means that the pipe to a worker or to the fork server broke."""
    return isinstance(error, EOFError | ConnectionError)


def remove_shared_memory(pids: Iterable[int]) -> None:
    """Remove the files that dead workers left in /dev/shm.

    Torch allocates such a file before it unlinks the name, which takes milliseconds for a
    large batch. A worker that is killed in between leaves the file.
    """
    for pid in pids:
        for file in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with suppress(OSError):
                if file.lstat().st_uid == os.getuid():
                    file.unlink()


@contextmanager
def without_child_signals() -> Iterator[None]:
    """Ignore SIGCHLD: torch's handler would raise an error even while torch ends its workers."""
    handler = signal.getsignal(signal.SIGCHLD)
    if handler is None or threading.current_thread() is not threading.main_thread():
        # A handler that was not set from Python cannot be restored; only the main thread handles
        # signals.
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


def _advice(method: str) -> str:
    return (
        f"with loader.multiprocessing_context={method} every worker first imports the script "
        f"that was run, so that the loading must stand under{_GUARD}"
    )
