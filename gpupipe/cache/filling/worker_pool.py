"""Starts download workers, watches them, and ends them."""

from __future__ import annotations

import json
import os
import threading
import weakref
from pathlib import Path
from typing import Any

from gpupipe.cache.filling.downloader import Task
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.errors import DataError
from gpupipe.runtime.process import ChildProcess

_PACKAGES = str(Path(__file__).parents[2])
_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


class WorkerPool:
    """The download workers that this process started.

    Args:
        dataset: The data set.
        cache: The settings of the cache to fill.
        count: Number of download workers; may be 0.
        do: "fill" to end when the data set is complete or the cache is full, "serve" to continue.
    """

    def __init__(
        self, dataset: DataSet, cache: CacheOptions, count: int, do: str = "serve"
    ) -> None:
        self._task_line = _task_line(dataset, cache, do)
        self._processes = [_start_process(self._task_line) for _ in range(count)]
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._finalizer = weakref.finalize(self, _stop_processes, self._processes, self._owner)
        _pools.add(self)

    def __len__(self) -> int:
        return len(self._processes)

    def restart_killed(self) -> None:
        """Restart download workers that a signal killed or that exited with status 0.

        Does nothing after `stop`, or in a forked child. Several threads may call it.

        Raises:
            DataError: A download worker failed; the message has its reason.
        """
        with self._lock:
            if self._finalizer.alive and os.getpid() == self._owner:
                self._restart_killed()

    def _restart_killed(self) -> None:
        for i, process in enumerate(self._processes):
            status = process.poll()
            if status is None:
                continue
            outcome = _read_outcome(process)
            process.close_pipes()
            if status > 0:
                why = outcome.get("error", f"exit status {status}")
                raise DataError(f"a download worker of the cache failed: {why}")
            self._processes[i] = _start_process(self._task_line)

    def read_outcomes(self) -> list[dict[str, Any]] | None:
        """Return the outcome of each download worker, or None while one is still running.

        Raises:
            DataError: A download worker failed.
        """
        if any(p.poll() is None for p in self._processes):
            return None
        return [_check_outcome(p) for p in self._processes]

    def stop(self) -> None:
        """End the download workers, and wait for them. Idempotent."""
        self._finalizer()


def restart_killed_workers() -> None:
    """Restart the killed download workers of all pools of this process.

    Raises:
        DataError: A download worker failed; the message has its reason.
    """
    for pool in list(_pools):
        pool.restart_killed()


def list_dataset(dataset: DataSet, cache: CacheOptions) -> None:
    """List the data set in a child process, and save the listing in the cache.

    Args:
        dataset: The data set.
        cache: The settings of the cache.

    Raises:
        DataError: The data set cannot be listed.
    """
    process = _start_process(_task_line(dataset, cache, "list"))
    try:
        process.wait()
        _check_outcome(process)
    finally:
        _stop_processes([process], os.getpid())


def _task_line(dataset: DataSet, cache: CacheOptions, do: str) -> bytes:
    task = Task(
        do=do, dataset=dataset, cache=cache.model_copy(update={"dir": cache.dir.absolute()})
    )
    return task.model_dump_json(exclude_defaults=True).encode() + b"\n"


def _start_process(line: bytes) -> ChildProcess:
    """Start a download worker, and send the task `line` to its standard input.

    The task may hold secrets, which other users could see in the arguments.
    """
    python_path = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(python_path), "PYTHONSAFEPATH": "1"}
    return ChildProcess("-m", "gpupipe.cache.filling.downloader", request=line, env=environment)


def _read_outcome(process: ChildProcess) -> dict[str, Any]:
    lines = process.read_rest().splitlines()
    return json.loads(lines[-1]) if lines else {}


def _check_outcome(process: ChildProcess) -> dict[str, Any]:
    outcome, status = _read_outcome(process), process.poll()
    if status:
        raise DataError(outcome.get("error", f"a process of the cache ended with status {status}"))
    return outcome


def _stop_processes(processes: list[ChildProcess], owner: int) -> None:
    """End the processes. In a forked child of the process `owner`, do nothing."""
    if os.getpid() != owner:
        return
    for process in processes:
        process.close_pipes()
        process.terminate()  # a later fork may hold its pipe open, so closing is not enough
    for process in processes:
        process.end()
