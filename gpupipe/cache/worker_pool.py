"""Starts download workers, restarts them, and ends them."""

import json
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from gpupipe.cache.downloader import Task
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.worker_process import start_worker
from gpupipe.errors import DataError
from gpupipe.runtime.process import ChildProcess

POOLS: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()
"""All pools of this process."""


class WorkerPool:
    """The download workers that this process started.

    Args:
        dataset: The data set.
        cache: The settings of the cache to fill.
        count: Number of download workers; may be 0.
        do: With "one", each worker ends when it has published a shard. With "fill", they end when
            the data set is complete or the cache is full. With "serve", they go on.
        idle: A worker that has listed the data set. It becomes the first one of the pool, or ends
            if `count` is 0.
    """

    def __init__(
        self,
        dataset: DataSet,
        cache: CacheOptions,
        count: int,
        do: str = "serve",
        idle: "IdleWorker | None" = None,
    ) -> None:
        self._task_line = _task_line(dataset, cache, do)
        self._processes: list[ChildProcess] = []
        self._failure = ""
        if idle is not None and count:
            self._processes += idle.take(self._task_line)
        elif idle is not None:
            idle.end()
        self._processes += [
            start_worker(self._task_line) for _ in range(count - len(self._processes))
        ]
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._finalizer = weakref.finalize(self, _stop_processes, self._processes, self._owner)
        POOLS.add(self)

    def __len__(self) -> int:
        return len(self._processes)

    def restart_killed(self) -> None:
        """Restart download workers that a signal killed or that exited with status 0.

        Does nothing after `stop`, or in a forked child. Several threads may call it.

        Raises:
            DataError: A download worker failed; the message has its reason.
        """
        with self._lock:
            if not self._finalizer.alive or os.getpid() != self._owner:
                return
            for i, process in enumerate([] if self._failure else self._processes):
                status = process.poll()
                if status is None:
                    continue
                outcome = _read_outcome(process)
                process.close_pipes()
                if status > 0:
                    self._failure = outcome.get("error", f"exit status {status}")
                    break
                self._processes[i] = start_worker(self._task_line)
            if self._failure:  # also at the next call, though the pipes are closed
                raise DataError(f"a download worker of the cache failed: {self._failure}")

    def read_outcomes(self) -> list[dict[str, Any]] | None:
        """Return the last report of each download worker; None while any of them is running.

        Raises:
            DataError: A download worker failed.
        """
        if any(p.poll() is None for p in self._processes):
            return None
        return [_check_outcome(p) for p in self._processes]

    def stop(self) -> None:
        """End the download workers, and wait for them. Idempotent."""
        self._finalizer()


class IdleWorker:
    """A download worker that has listed a data set, and waits for its next task.

    It ends with this object, unless `take` was called. A copy in another process has no worker.

    Args:
        process: The process of the worker; none for a copy.
    """

    def __init__(self, *process: ChildProcess) -> None:
        self._finalizer = weakref.finalize(self, _stop_processes, process, os.getpid())

    def __reduce__(self) -> "tuple[type[IdleWorker], tuple[()]]":
        return IdleWorker, ()

    def take(self, line: bytes) -> list[ChildProcess]:
        """Send a task to the worker, and return its process; [] if it was taken, or has ended."""
        detached = self._finalizer.detach()
        if detached is None:
            return []
        _, _, (processes, owner), _ = detached
        if owner != os.getpid():
            return []
        for process in processes:
            process.write(line)
        return list(processes)

    def end(self) -> None:
        """End the worker, and wait for it. Does nothing after `take`. Idempotent."""
        self._finalizer()


def list_dataset(dataset: DataSet, cache: CacheOptions) -> IdleWorker:
    """List the data set in a child process, and save the listing in the cache.

    Args:
        dataset: The data set.
        cache: The settings of the cache.

    Returns:
        The child process, which can go on as a download worker.

    Raises:
        DataError: The data set cannot be listed.
    """
    process = start_worker(_task_line(dataset, cache, "list"))
    idle = IdleWorker(process)
    try:
        line = process.read_line()
        outcome = json.loads(line) if line else {"error": ""}
        if "error" in outcome:
            why = outcome["error"] or f"a process of the cache ended with status {process.end()}"
            raise DataError(why)
    except BaseException:
        idle.end()  # the traceback of the exception may keep `idle` alive
        raise
    return idle


def _task_line(dataset: DataSet, cache: CacheOptions, do: str) -> bytes:
    task = Task(
        do=do, dataset=dataset, cache=cache.model_copy(update={"dir": cache.dir.absolute()})
    )
    return task.model_dump_json(exclude_unset=True).encode() + b"\n"


def _read_outcome(process: ChildProcess) -> dict[str, Any]:
    lines = process.read_rest().splitlines()
    return json.loads(lines[-1]) if lines else {}


def _check_outcome(process: ChildProcess) -> dict[str, Any]:
    outcome, status = _read_outcome(process), process.poll()
    if status:
        raise DataError(outcome.get("error", f"a process of the cache ended with status {status}"))
    return outcome


def _stop_processes(processes: Sequence[ChildProcess], owner: int) -> None:
    """End the processes. In a forked child of the process `owner`, do nothing."""
    if os.getpid() != owner:
        return
    for process in processes:
        process.close_pipes()
        process.terminate()  # a later fork may hold its pipe open, so closing is not enough
    for process in processes:
        process.end()
