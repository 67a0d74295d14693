"""Locks of files, which the kernel releases when the process that holds them dies.

`hold_lock` keeps other processes and threads out of a `with` block. Windows has locks of byte
ranges only: there, a lock is one byte far past the content of any file, and no one shares it.

The package `filelock` is unsuitable. It polls instead of waiting in the kernel, and in a forked
child, the destructor of its lock object releases the parent's lock.
"""

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupipe.runtime.systems import open_flags, require_posix

try:
    import fcntl
except ImportError:
    _msvcrt: Any = importlib.import_module("msvcrt")
else:
    _msvcrt = None

_BYTE = 1 << 30
"""The position of the byte that is locked on Windows."""
_SECONDS_BETWEEN = 0.05
"""How often Windows is asked for a lock: it cannot wait for one without a limit."""


def try_lock(file: int) -> bool:
    """Lock a file without waiting; return False if another process holds the lock.

    Args:
        file: Descriptor of the file, open for writing. Closing the descriptor releases the lock,
            unless a forked child holds a copy of it.
    """
    try:
        if _msvcrt is None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            os.lseek(file, _BYTE, os.SEEK_SET)
            _msvcrt.locking(file, _msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    return True


def lock(file: int) -> None:
    """Lock a file that `try_lock` could not lock: wait until other processes release it."""
    if _msvcrt is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    while not try_lock(file):
        time.sleep(_SECONDS_BETWEEN)


def share_lock(file: int) -> None:
    """Wait until no process has the file for itself, and lock it beside others that share it."""
    require_posix("a lock that processes share")
    fcntl.flock(file, fcntl.LOCK_SH)


def unlock(file: int) -> None:
    """Release the lock of a file, also where a forked child holds a copy of the descriptor."""
    if _msvcrt is None:
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        os.lseek(file, _BYTE, os.SEEK_SET)
        _msvcrt.locking(file, _msvcrt.LK_UNLCK, 1)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of the file at `path`; False without such a file."""
    try:
        with path.open("r+b") as file:
            return not try_lock(file.fileno())
    except FileNotFoundError:
        return False


@contextmanager
def hold_lock(path: Path, on_wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock of a file inside the `with` block.

    At most one thread, of any process, is inside at a time.

    Args:
        path: The lock file, created if necessary.
        on_wait: Called once, before waiting, if the lock is not free.

    Raises:
        OSError: The file cannot be created or locked, or is a symbolic link.
    """
    # A link in the place of a lock file would create or open a file somewhere else.
    file = os.open(path, open_flags("O_WRONLY", "O_CREAT", "O_NOFOLLOW"), 0o666)
    try:
        if not try_lock(file):
            on_wait()
            lock(file)
        try:
            yield
        finally:
            # If another thread forked meanwhile, its child holds a copy: closing would not unlock.
            unlock(file)
    finally:
        os.close(file)
