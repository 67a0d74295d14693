"""Limits the rate at which all download workers of a cache fetch, on this machine and on others."""

import struct
import time
from collections.abc import Callable
from pathlib import Path

from gpupipe.runtime.file_locks import hold_lock

_BURST_SECONDS = 0.5
_MAX_SECONDS, _MAX_FOREIGN_SECONDS = 3600.0, 60.0
"""Maximum wait that the rate file may cause. The second value holds if another machine wrote the
file, or this machine before a reboot.
"""
_FORMAT = struct.Struct("<dd36s")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RateLimit:
    """A rate limit that processes share through a file.

    The file holds the time at which the recorded transfers are within the limit again: by the wall
    clock, and by the monotonic clock, which nobody can set. It also holds the id of the machine's
    boot. Processes of the same boot use the monotonic clock, and others the wall clock.

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
        """Return in how many seconds the recorded transfers are within the limit.

        A negative number says for how long they have been.

        Args:
            stored: The content of the file that the processes share.
        """
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
