"""What torch's workers say when they end too soon, in plain words, and what stands in for one where there is none."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context

import torch

from gpupipe.errors import EngineError

_GUARD = """

    if __name__ == "__main__":
        with gpupipe.load(...) as loader:
            ...  # all that uses the loader

"""
_NO_MEMORY = "out of memory, perhaps; try fewer loader.workers or a smaller batch"
_UNFINISHED = "bootstrapping phase"
"""What multiprocessing says in a process that is still importing the main script, and is to start another."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch's operators to one thread, as torch does in a worker, and restore the caller's number.

    OpenMP's threads wait for one another in every operator: on two cores beside a busy process, for 20 times as long as the
    work takes. Changing the number costs less than a microsecond. It is the calling thread's own, except that
    a thread whose very first torch operator runs meanwhile keeps the one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def failure(error: Exception, method: str | None, started: bool) -> EngineError | None:
    """What an error of torch's iterator comes to; None where no worker's end is behind it.

    Args:
        error: What torch or multiprocessing raised.
        method: How workers are started: fork, spawn or forkserver; None for the platform's default.
        started: Whether one of them has made a batch already.
    """
    method = get_context(method).get_start_method()
    said = str(error).partition("\n")[0].partition(". ")[0].rstrip(" .") or type(error).__name__
    if _UNFINISHED in str(error):
        return EngineError(f"a worker that is being started imports the script, and the script starts workers of its own: {_advice(method)}")
    killed, exited = "is killed by signal" in said, "exited unexpectedly" in said
    broken = isinstance(error, EOFError | ConnectionError)  # of the pipe to a worker, or to the fork server
    if not (killed or exited or broken):
        return None
    if started or killed or method == "fork":
        return EngineError(f"{said if killed or exited else 'a DataLoader worker ended while it sent a batch'}: {_NO_MEMORY}")
    return EngineError(f"no worker could be started ({said}). The likely cause: {_advice(method)}If it stands there already, see what the worker printed.")


@contextmanager
def without_child_signals() -> Iterator[None]:
    """Ignore that children end. torch raises from that signal, also in the middle of ending its workers."""
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
    return f"with loader.multiprocessing_context={method} every worker first imports the script that was run, so that the loading must stand under{_GUARD}"
