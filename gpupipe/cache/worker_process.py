"""Starts the processes of download workers, one of them before its task is known.

A worker imports for as long as `load` does, and both can do so at the same time. So this module
imports little beside the standard library. What a worker runs is worker_main.py.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpupipe.runtime.process import ChildProcess

_PACKAGES = str(Path(__file__).parents[2])
_early: list[ChildProcess] = []
"""Workers that wait for their first task, and of which nobody knows yet."""


def start_worker(line: bytes) -> ChildProcess:
    """Start a download worker, or take one that was started early, and send it a task.

    The task is not an argument of the process: other users can see arguments, and it may hold
    secrets.

    Args:
        line: The task, a line of JSON.
    """
    process = _take_early() or _start(b"")
    process.write(line)
    return process


def _take_early() -> ChildProcess | None:
    while _early:
        with suppress(IndexError):  # another thread took it
            process = _early.pop()
            if process.poll() is None:
                return process
            process.close_pipes()
    return None


def _start(expected: bytes, *protocols: str) -> ChildProcess:
    """Start a worker without a task, which imports the clients of some protocols.

    Args:
        expected: The line for `early_request.read_data`.
        protocols: The protocols, such as s3.
    """
    python_path = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",  # NumPy would start a thread for each core
        "PYDANTIC_DISABLE_PLUGINS": "__all__",  # to look for them reads each installed package
    }
    arguments = ("-m", "gpupipe.cache.worker_main", *protocols)
    return ChildProcess(*arguments, request=expected + b"\n", env=environment)


@contextmanager
def start_early(expected: bytes, *protocols: str) -> Iterator[None]:
    """Start a download worker.

    The first `start_worker` in the context takes it. It ends with the context if there is none, as
    with settings that need no worker.

    Args:
        expected: The line for `early_request.read_data`, without its end.
        protocols: The protocols of the store, such as s3.
    """
    process = _start(expected, *protocols)
    _early.append(process)
    try:
        yield
    finally:
        with suppress(ValueError):  # it was taken
            _early.remove(process)
            process.terminate()  # or it ends only after all imports
            process.end()
