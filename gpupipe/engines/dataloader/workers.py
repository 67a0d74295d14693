"""What torch's workers say when they end too soon, in plain words, and what stands in for one where
there is none.
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
_SHARED_MEMORY = Path("/dev/shm")  # of Linux, where torch puts what workers send
_KILLED = re.compile(r"\(pid (\d+)\) is killed by signal: ([^.]+)")
_SECONDS_TO_DIE = 5
_NO_MEMORY = "out of memory, perhaps; try fewer loader.workers or a smaller batch"
_UNFINISHED = "bootstrapping phase"
"""What multiprocessing says in a process that is still importing the main script, and is to start
another.
"""


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch's operators to one thread, as torch does in a worker, and restore the caller's
    number.

    OpenMP's threads wait for one another in every operator: on two cores beside a busy process, for
    20 times as long as the work takes. Changing the number costs less than a microsecond. It is the
    calling thread's own, except that a thread whose very first torch operator runs meanwhile keeps
    the one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class DeadWorker:
    """A worker that ended too soon.

    number: its place among the workers, or None if torch does not tell; signal: a name, or empty.
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
    """Keep torch from raising, out of SIGCHLD, that a worker of this iterator died.

    It raises in whatever the main thread does: in the training step, or in the generator of the
    plans, which an exception ends for good. Without that signal torch looks at its workers after
    five seconds without a batch.
    """
    if getattr(iterator, "_worker_pids_set", False):
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def dead_workers(iterator: Any, error: Exception) -> list[DeadWorker]:
    """The workers that ended too soon.

    iterator: torch's, or None where torch raised `error` before it was made.
    """
    workers = getattr(iterator, "_workers", [])
    if workers and _is_broken(error):  # the connection ends before the process does
        ended = connection.wait([w.sentinel for w in workers], _SECONDS_TO_DIE)
        for worker in (
            w for w in workers if w.sentinel in ended
        ):  # whose files are closed; its exit code comes later
            worker.join(_SECONDS_TO_DIE)
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


def failure(
    error: Exception, dead: list[DeadWorker], method: str | None, started: bool
) -> EngineError | None:
    """What an error of torch's iterator comes to; None where no worker's end is behind it.

    Args:
        error: What torch or multiprocessing raised.
        dead: The workers that ended too soon.
        method: How workers are started: fork, spawn or forkserver; None for the platform's default.
        started: Whether one of them has made a batch already.
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
    said = str(first) if first else "a DataLoader worker ended while it sent a batch"
    if started or method == "fork" or (first and first.signal):
        return EngineError(f"{said}: {_NO_MEMORY}")
    return EngineError(
        f"no worker could be started ({said}). The likely cause: {_advice(method)}If it "
        "stands there already, see what the worker printed."
    )


def _is_broken(error: Exception) -> bool:
    """Whether a pipe to a worker, or to the fork server, ended."""
    return isinstance(error, EOFError | ConnectionError)


def end_workers(iterator: Any, dead: list[DeadWorker]) -> None:
    """End all workers of an iterator of which some have died, and remove what they left in shared
    memory.
    """
    pids = {worker.pid for worker in dead} | {w.pid for w in getattr(iterator, "_workers", [])}
    with without_child_signals():
        if hasattr(iterator, "_shutdown_workers"):  # an error's traceback may hold it
            iterator._shutdown_workers()
    remove_shared_memory(pids)


def remove_shared_memory(pids: Iterable[int]) -> None:
    """Remove the files in /dev/shm of workers that have ended.

    torch allocates such a file before it removes the name, which takes milliseconds for a large
    batch: a worker that is killed meanwhile leaves it behind.
    """
    for pid in pids:
        for file in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with suppress(OSError):
                if file.lstat().st_uid == os.getuid():
                    file.unlink()


@contextmanager
def without_child_signals() -> Iterator[None]:
    """Ignore that children end.

    torch raises from that signal, also in the middle of ending its workers.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield  # a handler that is not Python's cannot be put back; other threads get no signals
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
