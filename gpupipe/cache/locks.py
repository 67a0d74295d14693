"""Locks between processes, also over a network file system whose locks work (NFS 4): the system
takes them back from whoever dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupipe.cache.disk import on_disk


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Only one process, and one thread of it, is in here at a time."""
    with path.open("ab") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(
                f,
                fcntl.LOCK_UN,
                # closing alone would not, where another thread forked meanwhile and its child has a
                # copy of the file
            )


class Claim:
    """A file that its maker holds a lock on until it ends, in whatever way. It holds JSON.

    It is made, and found to be abandoned, by whoever holds the cache's lock: between its making and
    its locking nobody looks.
    """

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self._size = path, 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._release = weakref.finalize(self, _release, self._file, path, os.getpid())
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.write(content)
        except BaseException:
            self.release()
            raise

    def write(self, content: dict[str, Any]) -> None:
        """Replace the content, in place and in whole blocks: where it needs no more of them, this
        works on a full disk. Raises OSError.
        """
        text = json.dumps(content).encode()
        self._size = max(self._size, on_disk(len(text)))
        if self._release.alive and os.pwrite(self._file, text.ljust(self._size), 0) < self._size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def release(self) -> None:
        """May be called twice."""
        self._release()


def _release(file: int, path: Path, owner: int) -> None:
    """A forked child of the owner only lets go of its own handle."""
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
    os.close(file)


def abandoned(path: Path) -> bool:
    """Whether nobody alive holds the claim at `path`."""
    try:
        with path.open("r+b") as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def content(path: Path) -> dict[str, Any]:
    """What a claim says; {} where it is gone, or its maker died before it wrote anything."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
