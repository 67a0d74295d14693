"""The check that no test leaves anything behind."""

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest


def _left() -> tuple[list[str], list[str]]:
    """Shared memory and sockets of this process, and its threads and child processes of ours. The
    shared memory has no names: what lies in /dev/shm is of other processes.
    """
    open_files = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            # Path takes five times as long.
            name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        except OSError:
            continue
        if "memfd:gpupipe" in name or name.startswith("socket:"):
            open_files.append(name)
    threads = [t.name for t in threading.enumerate() if t.name.startswith("gpupipe")]
    return sorted(open_files), threads + _children()


def _children() -> list[str]:
    """Processes of this one that are still running, but for the one of forked_python.py."""
    return [
        f"process {pid}"
        for pid in list_children(os.getpid())
        if b"/forked_python_server.py" not in _read(f"/proc/{pid}/cmdline")
    ]


def list_children(parent: int) -> list[int]:
    """The processes that a process has started and that are still running."""
    if parent == os.getpid():
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # it has none: no need to look at all processes
            return []
    return [pid for pid, its_parent in list_processes() if its_parent == parent]


def list_descendants(ancestor: int) -> list[int]:
    """The running processes that a process has started, and those that they have started."""
    found, processes = [ancestor], list_processes()
    for one in found:
        found += [pid for pid, parent in processes if parent == one]
    return found[1:]


def list_processes() -> list[tuple[int, int]]:
    """All running processes: their ids, and those of their parents."""
    processes = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split(None, 2)
            if fields and fields[0] != b"Z":
                processes.append((int(name), int(fields[1])))
    return processes


def _read(path: str) -> bytes:
    """The content of a file in /proc; b"" if its process has ended. open() takes twice as long."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 4096)
    except OSError:
        return b""
    finally:
        os.close(file)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves sockets, threads, shared memory or child processes."""
    before = _left()
    yield
    if not any(_more(before, _left())):
        return
    gc.collect()  # 0.1 s of CPU time after many tests: only for what may hang in a cycle
    deadline, pause = time.monotonic() + 30, 0.001
    while any(left := _more(before, _left())) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    assert not any(left), f"left behind: {left}"


def _more(before: tuple[list[str], ...], after: tuple[list[str], ...]) -> list[list[str]]:
    """What is there after a test and was not before it."""
    return [
        sorted((Counter(b) - Counter(a)).elements()) for a, b in zip(before, after, strict=True)
    ]
