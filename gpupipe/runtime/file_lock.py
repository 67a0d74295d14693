"""Exclusive locks on files between processes, which the kernel releases when their owner dies.

They also work over network file systems that support locks, such as NFS 4. The package `filelock`
does not fit: it polls in place of waiting in the kernel, and in a forked child of the owner its
destructor unlocks the owner's lock.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def try_lock(file: int) -> bool:
    """Lock a file without waiting; return False if another process holds the lock.

    Args:
        file: Descriptor of the file, open for writing. Closing it releases the lock, unless a
            forked child holds a copy.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock of the file at `path`, if there is one."""
    try:
        with path.open("r+b") as file:
            return not try_lock(file.fileno())
    except FileNotFoundError:
        return False


@contextmanager
def hold_lock(path: Path, on_wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock of a file inside the `with` block.

    Only one process, and only one of its threads, is inside at a time.

    Args:
        path: The lock file, created if necessary.
        on_wait: Called before waiting for another process.

    Raises:
        OSError: The file cannot be created or locked.
    """
    with path.open("ab") as file:
        if not try_lock(file.fileno()):
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # If another thread forked meanwhile, its child holds a copy: closing would not unlock.
            fcntl.flock(file, fcntl.LOCK_UN)
