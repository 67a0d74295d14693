"""Starts samplers, watches them, and ends them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

from gpupipe.cache.downloader import Task
from gpupipe.cache.folder import CacheFolder
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.errors import DataError

_PATIENCE = 10.0
_PACKAGES = str(Path(__file__).parents[2])


class Crew:
    """The samplers of this process."""

    def __init__(
        self, dataset: DataSet, cache: CacheOptions, count: int, do: str = "serve"
    ) -> None:
        self._line = _line(dataset, cache, do)
        self._processes = [_started(self._line) for _ in range(count)]
        self._finalizer = weakref.finalize(self, _stop, self._processes, os.getpid())

    def __len__(self) -> int:
        return len(self._processes)

    def check(self) -> None:
        """Start anew those that somebody killed.

        Raises DataError where one gave up, with its reason.
        """
        for place, process in enumerate(self._processes):
            status = process.poll()
            if status is None:
                continue
            ended = _outcome(process)
            _closed(process)
            if status > 0:
                raise DataError(
                    f"a sampler of the cache gave up: {ended.get('error', f'exit status {status}')}"
                )
            self._processes[place] = _started(self._line)

    def ended(self) -> list[dict[str, Any]] | None:
        """How all of them ended; None as long as one is at work.

        Raises DataError where one failed.
        """
        if any(p.poll() is None for p in self._processes):
            return None
        return [_checked(p) for p in self._processes]

    def stop(self) -> None:
        """End them, and wait until they have. May be called twice."""
        self._finalizer()


def listed(dataset: DataSet, cache: CacheOptions) -> None:
    """Have a process list the data set. Raises DataError."""
    process = _started(_line(dataset, cache, "list"))
    try:
        process.wait()
        _checked(process)
    finally:
        _stop([process], os.getpid())


def cleaned(folder: CacheFolder) -> None:
    """Remove what samplers that were ended have left."""
    with folder.lock():
        folder.tidy()


def _line(dataset: DataSet, cache: CacheOptions, do: str) -> bytes:
    task = Task(
        do=do, dataset=dataset, cache=cache.model_copy(update={"dir": cache.dir.absolute()})
    )
    return task.model_dump_json(exclude_defaults=True).encode() + b"\n"


def _started(line: bytes) -> subprocess.Popen[bytes]:
    """A process with its task, which may hold secrets, so that it stands neither among its
    arguments nor in its environment.
    """
    known = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(known), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpupipe.cache.downloader"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it ended already, and its status says why
    return process


def _outcome(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    lines = [] if process.stdout.closed else process.stdout.read().splitlines()
    return json.loads(lines[-1]) if lines else {}


def _checked(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    ended = _outcome(process)
    if process.returncode:
        raise DataError(
            ended.get("error", f"a process of the cache ended with status {process.returncode}")
        )
    return ended


def _closed(process: subprocess.Popen[bytes]) -> None:
    """Its pipes: it ends by that, if it has not."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _stop(processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    """Not in a forked child of the owner, which has copies of all."""
    if os.getpid() != owner:
        return
    for process in processes:
        _closed(process)
        process.terminate()  # a child that was forked since may hold the other end of its pipe open
    for process in processes:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
