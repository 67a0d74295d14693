"""Closes descriptors in forked children, and ends workers when their parent ends.

A forked child has a copy of every descriptor. A port stays in use, and a file locked, until the
last copy is closed, so a child that outlives its parent keeps both. Close-on-exec does not help: a
forked worker calls no exec.

A worker notices the end of its parent by a pipe to which nobody writes. Only the parent has the
writing end, and the kernel closes that when the parent ends in any way. PR_SET_PDEATHSIG is
unsuitable: it fires when the thread that forked the worker ends.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, parent_process
from pathlib import Path

_descriptors: set[int] = set()
_addresses: set[int | str] = set()
_reading, _writing = os.pipe()
_parents: list[int] = []
"""In a forked child: the reading end of its parent's pipe."""


def close_in_forks(descriptor: int) -> None:
    """Close a descriptor in every child that is forked from now on."""
    _descriptors.add(descriptor)


def keep_in_forks(descriptor: int) -> None:
    """Undo `close_in_forks`; call it before this process closes the descriptor. Idempotent."""
    _descriptors.discard(descriptor)


def close_sockets_in_forks(address: int | str) -> None:
    """Close a listening socket and its connections in every child that is forked from now on.

    Args:
        address: The port of a TCP socket, or the file of a Unix socket.
    """
    _addresses.add(address)


def keep_sockets_in_forks(address: int | str) -> None:
    """Undo `close_sockets_in_forks`. Idempotent."""
    _addresses.discard(address)


def end_with_parent(before_end: Callable[[], object] = lambda: None) -> None:
    """End this worker process as soon as its parent has ended. Call it in the worker.

    Args:
        before_end: Called before the worker ends.
    """
    parent = parent_process()
    # A worker of a fork server was not forked by its parent, so it waits for both.
    ends = [*_parents, *([parent.sentinel] if parent is not None else [])]

    def run() -> None:
        connection.wait(ends)
        try:
            before_end()
        finally:
            os._exit(1)

    threading.Thread(target=run, name="gpupipe parent", daemon=True).start()


def _after_fork() -> None:
    global _reading, _writing
    os.close(_writing)
    _parents[:] = [_reading]
    _reading, _writing = os.pipe()
    for descriptor in [*_descriptors, *_find_sockets()]:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _addresses.clear()


def _find_sockets() -> list[int]:
    """Return the descriptors of sockets whose local address is in `_addresses`."""
    folder = Path("/proc/self/fd")
    if not _addresses or not folder.is_dir():
        return []
    return [n for n in map(int, os.listdir(folder)) if _own_address(n) in _addresses]


def _own_address(descriptor: int) -> int | str | None:
    """Return the local port of a TCP socket, or the path of a Unix socket; else None."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            return int(sock.getsockname()[1])
        return str(sock.getsockname()) if sock.family == socket.AF_UNIX else None
    except OSError:
        return None
    finally:
        sock.detach()  # it stays open


os.register_at_fork(after_in_child=_after_fork)
