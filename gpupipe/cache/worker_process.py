"""Starts the processes of download workers, one of them before its task is known.

A worker imports for as long as `load` does, and both can do so at the same time. So this module
imports little beside the standard library. It is also what a worker runs:

    python -m gpupipe.cache.worker_process [PROTOCOL...]

The worker imports fsspec's clients of the protocols, such as s3, before its first task.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpupipe.runtime.files import expand_user, open_regular
from gpupipe.runtime.garbage_collection import pause_collection
from gpupipe.runtime.process import ChildProcess

_PACKAGES = str(Path(__file__).parents[2])
_SOURCE = re.compile(r"""\bsource['"]?\s*[:=]\s*['"]?remote\b""")
_URL = re.compile(r"""\burl['"]?\s*[:=]\s*['"]?([a-z][a-z0-9+.-]*)://""")
_MAX_BYTES = 1 << 20
"""At most so much of a config is read, to see whether its data set is remote."""
_early: list[ChildProcess] = []
"""Workers that wait for their first task, and of which nobody knows yet."""


def start_worker(line: bytes) -> ChildProcess:
    """Start a download worker, or take one that was started early, and send it a task.

    The task is not an argument of the process: other users can see arguments, and it may hold
    secrets.

    Args:
        line: The task, a line of JSON.
    """
    process = _take_early() or _start()
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


def _start(*protocols: str) -> ChildProcess:
    """Start a worker without a task, which imports the clients of some protocols."""
    python_path = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",  # NumPy would start a thread for each core
        "PYDANTIC_DISABLE_PLUGINS": "__all__",  # to look for them reads each installed package
    }
    return ChildProcess("-m", "gpupipe.cache.worker_process", *protocols, env=environment)


@contextmanager
def start_early(
    config: object, overrides: Sequence[str], changes: Mapping[str, Any]
) -> Iterator[None]:
    """Start a download worker if a config is one of a remote data set, as far as its text says.

    The first `start_worker` in the context takes it. It ends with the context if there is none, as
    with settings that need no worker.

    Args:
        config: What `load` takes: the path of a YAML file, a dict, or anything else.
        overrides: The overrides of `load`.
        changes: The keyword arguments of `load`.
    """
    text = "\n".join([_read_text(config), *overrides, _read_text(changes)])
    is_first_rank = os.environ.get("RANK", "0") == "0"  # the others start no workers
    if not is_first_rank or _SOURCE.search(text) is None:
        yield
        return
    url = _URL.search(text)
    process = _start(*([] if url is None else [url[1]]))
    _early.append(process)
    try:
        yield
    finally:
        with suppress(ValueError):  # it was taken
            _early.remove(process)
            process.terminate()  # or it ends only after all imports
            process.end()


def _read_text(config: object) -> str:
    """Return the file of a config, or the source and the url of a dict; "" if there are none."""
    if isinstance(config, Mapping):
        data = config.get("data")
        if not isinstance(data, Mapping):
            return ""
        return "".join(f"{name}: {data.get(name)}\n" for name in ("source", "url"))
    with suppress(OSError, ValueError, TypeError):
        path = expand_user(config)  # type: ignore[arg-type]
        with open_regular(path) as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    return ""


def main(protocols: Sequence[str]) -> None:
    """Import what a worker needs, and run the tasks from standard input."""
    with pause_collection():
        from gpupipe.cache import downloader, file_system

        for protocol in protocols:
            file_system.import_client(protocol)
    downloader.run_tasks()


if __name__ == "__main__":
    main(sys.argv[1:])
