"""Finds out why a DataLoader worker died and which sample killed it, and removes its files.

A process whose decoder or step accesses invalid memory dies of a signal that it cannot catch. So
the samples that a dead worker may have had go to a new process with one thread. That process forks
one child after another. A child writes one byte to a pipe before each sample, so the number of
bytes tells which sample killed the child. The next child starts with that sample, to test whether
the sample alone crashes a process.
"""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch

from gpupipe.engines.dataloader.samples import Samples
from gpupipe.engines.dataloader.work_item import WorkItem
from gpupipe.errors import EngineError, counted
from gpupipe.runtime.capability_probe import describe_exit
from gpupipe.runtime.process import name_signal, run_python
from gpupipe.runtime.systems import IS_POSIX
from gpupipe.sampling.sampler import Plan

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"})
"""Signals that faulty code raises in its own process.

SIGKILL is missing, because it comes from the kernel when memory runs out, or from a user.
"""
_SECONDS = 300
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from "
    "gpupipe.engines.dataloader.worker_death import child; child()"
)
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
        DeadWorker(n, w.pid, name_signal(-w.exitcode))
        for n, w in enumerate(workers)
        if w.exitcode is not None
    ]
    if not dead and (killed := _KILLED.search(str(error))):
        number = next((s for s in signal.valid_signals() if signal.strsignal(s) == killed[2]), 0)
        dead = [DeadWorker(None, int(killed[1]), name_signal(number) or killed[2])]
    return dead


def explain_failure(
    error: Exception, dead: list[DeadWorker], method: str | None, started: bool
) -> EngineError | None:
    """Return the error to raise if torch's iterator failed because a worker ended.

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
    """Return whether `error` means that the pipe to a worker or to the fork server broke."""
    return isinstance(error, EOFError | ConnectionError)


def remove_shared_memory(pids: Iterable[int]) -> None:
    """Remove the files that dead workers left in /dev/shm.

    Torch creates such a file by name, allocates its memory, and then unlinks the name. Allocating
    takes milliseconds for a large batch. A worker that is killed meanwhile leaves the file.
    """
    for pid in pids:
        for file in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with suppress(OSError):
                if file.lstat().st_uid == os.getuid():
                    file.unlink()


@contextmanager
def without_child_signals() -> Iterator[None]:
    """Ignore SIGCHLD in this context, if it is entered on the main thread.

    Otherwise torch's handler would raise an error even while torch ends its workers.
    """
    handler = signal.getsignal(signal.SIGCHLD) if IS_POSIX else None
    if handler is None or threading.current_thread() is not threading.main_thread():
        # A handler that was not set from Python cannot be restored; only the main thread handles
        # signals; Windows has no such signal.
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


class WorkerCrashError(EngineError):
    """A worker died of a signal that a sample or a step most likely caused.

    Attributes:
        plans: The plans of the batches that the worker may have been working on.
        description: Which worker died, and of which signal.
    """

    def __init__(self, description: str, plans: Sequence[Plan]) -> None:
        self.description, self.plans = description, list(plans)
        super().__init__(f"{description}, most likely while it decoded or transformed a sample")


def find_killers(
    samples: Samples, items: Sequence[WorkItem], crash: WorkerCrashError
) -> list[tuple[int, str]]:
    """Find the work items that crash a process in which no other work item ran before.

    Args:
        samples: The data set that the workers use.
        items: Work items of one sample each.
        crash: The death of the worker that may have had these samples.

    Returns:
        For each work item that crashes: its position in `items`, and the name of the signal.

    Raises:
        EngineError: If the new process does not start, fails without a crash, or takes too long; or
            if no work item crashes it.
    """
    suspects = f"{crash.description}, and the samples that it may have had"
    try:
        content = pickle.dumps((samples, list(items)))
    except Exception as e:  # __reduce__ of a plugin's step can raise anything
        raise EngineError(f"{suspects} cannot be tried in another process: {e}") from e
    try:
        process = run_python("-c", _START, json.dumps(sys.path), stdin=content, timeout=_SECONDS)
    except subprocess.TimeoutExpired as e:
        raise EngineError(
            f"{suspects} could not all be tried in another process within {_SECONDS} s"
        ) from e
    if ended := describe_exit(process.returncode, process.stderr.decode(errors="replace")):
        raise EngineError(f"{suspects} made the process that tried them fail: {ended}")
    if crashes := json.loads(process.stdout):
        return [(position, name) for position, name in crashes]
    advice = (
        "A full /dev/shm does that: `gpupipe doctor` shows it"
        if "SIGBUS" in crash.description
        else "Try loader.multiprocessing_context=spawn"
    )
    raise EngineError(
        f"{crash.description}, but no sample is to blame: another process survived "
        f"{counted(len(items), 'sample')} that it may have had. {advice}"
    )


def child() -> None:
    """Try the pickled work items from stdin, and print those that crash, as JSON.

    `find_killers` runs this in a new process.
    """
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that what a step prints does not get into the JSON
    samples, items = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    print(json.dumps(_run_in_children(samples, items)), file=answer)


def _run_in_children(samples: Samples, items: Sequence[WorkItem]) -> list[tuple[int, str]]:
    crashes = []
    begin = 0
    while begin < len(items):
        done, ended = _fork(samples, items[begin:])
        if not ended:
            break
        if ended not in CRASHES:
            sys.exit(f"it died of {ended}")
        if done == 0:
            crashes.append((begin, ended))
        begin += done or 1
    return crashes


def _fork(samples: Samples, items: Sequence[WorkItem]) -> tuple[int, str]:
    """Process work items in a forked child.

    Returns how many items the child survived before a signal killed it, and the signal's name. The
    name is "" if no signal killed the child; then the number means nothing.
    """
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        for item in items:
            os.write(writing, b".")
            with suppress(Exception):  # only crashes are of interest
                samples[item]
        os._exit(0)  # not sys.exit(): exit handlers of plugins may crash
    os.close(writing)
    with open(reading, "rb") as announced:
        count = len(announced.read())
    return count - 1, name_signal(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
