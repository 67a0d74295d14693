"""The check that no test leaves anything behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest


def _left() -> tuple[list[str], list[str], set[str]]:
    """Shared memory and sockets of this process, its threads and child processes of ours, and files
    in /dev/shm.
    """
    open_files = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = str(Path(f"/proc/self/fd/{fd}").readlink())
        except OSError:
            continue
        if "memfd:gpupipe" in name or name.startswith("socket:"):
            open_files.append(name)
    threads = [t.name for t in threading.enumerate() if t.name.startswith("gpupipe")]
    return sorted(open_files), threads + _children(), set(os.listdir("/dev/shm"))


def _children() -> list[str]:
    """Processes of this one that are still running, but for the one of forked_python.py."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            command = file.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if (
            parent == str(os.getpid())
            and state != "Z"
            and b"/forked_python_server.py" not in command
        ):
            found.append(f"process {file.parent.name}")
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves sockets, threads, shared memory or child processes."""
    before = _left()
    yield
    gc.collect()
    deadline = time.monotonic() + 30
    while any(left := _more(before, _left())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(left), f"left behind: {left}"


def _more(
    before: tuple[list[str], list[str], set[str]], after: tuple[list[str], list[str], set[str]]
) -> tuple[list[str], ...]:
    """What is there after a test and was not before it."""
    open_files, threads = [
        sorted((Counter(b) - Counter(a)).elements())
        for a, b in zip(before[:2], after[:2], strict=True)
    ]
    return open_files, threads, [name for name in after[2] - before[2] if "gpupipe" in name]
