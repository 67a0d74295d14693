"""Small files that coordinate the processes of a cache: claims, and the state of the rate limit.

A claim is a file of JSON whose lock shows whether the process that created it still runs. All files
of a cache are counted in whole disk blocks.
"""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpupipe.runtime.files import hold_lock, is_locked, try_lock

BLOCK = 4096
"""Bytes of a file system block: file sizes on disk are assumed to be multiples of it."""
_BURST_SECONDS = 0.5
_MAX_SECONDS, _MAX_FOREIGN_SECONDS = 3600.0, 60.0
"""Maximum wait that the rate file may cause. The second value holds if another machine wrote the
file, or this machine before a reboot.
"""
_FORMAT = struct.Struct("<dd36s")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def disk_size(size: int) -> int:
    """Return the bytes that a file of `size` bytes takes on disk."""
    return -(-size // BLOCK) * BLOCK


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file.

    Without a buffer, a full disk raises OSError here, and not when the file is closed.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


class Claim:
    """A JSON file that its creator keeps locked until it releases the claim or the process ends.

    Only the holder of the cache's lock creates claims or checks if they are abandoned. So no
    process sees a claim between its creation and its locking.

    Args:
        path: The new file.
        content: The content of the file, which must be JSON.

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
    """Return whether the process that created the claim at `path` has ended."""
    return not is_locked(path)


class RateLimit:
    """A rate limit that processes share through a file.

    The file holds the time at which the recorded transfers are within the limit again, by the wall
    clock and by the monotonic clock, and the id of the machine's boot. Processes of the same boot
    use the monotonic clock, which nobody can set.

    Args:
        path: The file.
        bytes_per_second: The limit; None for no limit.
        pause: Sleeps for a number of seconds.
    """

    def __init__(
        self, path: Path, bytes_per_second: int | None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._path, self._rate, self._pause = path, bytes_per_second, pause
        self._boot = _read_boot_id()

    def take(self, size: int) -> None:
        """Record a transfer of `size` bytes, and sleep until the rate limit allows it."""
        if self._rate is None:
            return
        with hold_lock(self._path), self._path.open("r+b", buffering=0) as f:
            wait = max(self._remaining_seconds(f.read()), -_BURST_SECONDS) + size / self._rate
            f.seek(0)
            f.write(_FORMAT.pack(time.time() + wait, time.monotonic() + wait, self._boot))
        self._pause(max(0.0, wait))

    def _remaining_seconds(self, stored: bytes) -> float:
        """Return the seconds until recorded transfers are within the limit; negative if now."""
        if len(stored) != _FORMAT.size:  # a new file, or a damaged one
            return -_BURST_SECONDS
        until, monotonic_until, boot = _FORMAT.unpack(stored)
        if self._boot.strip(b"\0") and boot == self._boot:
            return float(min(monotonic_until - time.monotonic(), _MAX_SECONDS))
        return float(min(until - time.time(), _MAX_FOREIGN_SECONDS))


def _read_boot_id() -> bytes:
    """Return the id of this machine's current boot, 36 bytes; zeros if the system has none."""
    try:
        return _BOOT_ID.read_bytes().strip()[:36].ljust(36, b"\0")
    except OSError:
        return bytes(36)
