"""Claims: files of JSON whose locks show whether the process that created them still runs."""

from __future__ import annotations

import errno
import json
import os
import weakref
from pathlib import Path
from typing import Any

from gpupipe.cache.disk import disk_size
from gpupipe.runtime.files import is_locked, try_lock


class Claim:
    """A file of JSON on which its creator holds a lock until it ends, however it ends.

    Only the holder of the cache's lock creates claims or checks if they are abandoned. So no
    process sees a claim between its creation and its locking.

    Args:
        path: The new file.
        content: Its content, which must be JSON.

    Raises:
        OSError: The file exists already or cannot be written.
    """

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self._size = path, 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._release = weakref.finalize(self, _release, self._file, path, os.getpid())
        try:
            if not try_lock(self._file):
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
            self.write(content)
        except BaseException:
            self.release()
            raise

    def write(self, content: dict[str, Any]) -> None:
        """Replace the content in place and in whole disk blocks.

        If the content needs no more blocks than before, this works even on a full disk.

        Raises:
            OSError: The disk is full, or the write fails.
        """
        text = json.dumps(content).encode()
        self._size = max(self._size, disk_size(len(text)))
        if self._release.alive and os.pwrite(self._file, text.ljust(self._size), 0) < self._size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def release(self) -> None:
        """Remove the file and its lock. Idempotent."""
        self._release()


def _release(file: int, path: Path, owner: int) -> None:
    """Remove the file and close it; in a forked child of the owner, only close it."""
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
    os.close(file)


def is_abandoned(path: Path) -> bool:
    """Return whether no living process holds the claim at `path`."""
    return not is_locked(path)
