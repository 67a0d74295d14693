"""A limit of bytes per second that all processes of a cache share."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

from gpupipe.runtime.file_lock import hold_lock

_BURST_SECONDS = 0.5
_MAX_SECONDS, _MAX_FOREIGN_SECONDS = 3600.0, 60.0
"""The longest wait that the file may cause; and if another machine wrote it, or this one before a
reboot.
"""
_FORMAT = struct.Struct("<dd36s")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RateLimit:
    """A rate limit that processes share through a file.

    The file holds until when the bytes taken so far last: in seconds since 1970, in seconds of the
    monotonic clock, and the boot that this clock belongs to. Processes of one boot use the
    monotonic clock, which nobody can set.

    Args:
        path: The file.
        bytes_per_second: The limit; None for no limit.
        pause: Waits a number of seconds.
    """

    def __init__(
        self, path: Path, bytes_per_second: int | None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._path, self._rate, self._pause = path, bytes_per_second, pause
        self._boot = _read_boot_id()

    def take(self, size: int) -> None:
        """Wait until `size` more bytes are within the limit."""
        if self._rate is None:
            return
        with hold_lock(self._path), self._path.open("r+b", buffering=0) as f:
            wait = max(self._remaining_seconds(f.read()), -_BURST_SECONDS) + size / self._rate
            f.seek(0)
            f.write(_FORMAT.pack(time.time() + wait, time.monotonic() + wait, self._boot))
        self._pause(max(0.0, wait))

    def _remaining_seconds(self, stored: bytes) -> float:
        """Return how long the bytes taken so far last; negative if they are through."""
        if len(stored) != _FORMAT.size:  # a new file, or one of an earlier version
            return -_BURST_SECONDS
        until, monotonic_until, boot = _FORMAT.unpack(stored)
        if self._boot.strip(b"\0") and boot == self._boot:
            return float(min(monotonic_until - time.monotonic(), _MAX_SECONDS))
        return float(min(until - time.time(), _MAX_FOREIGN_SECONDS))


def _read_boot_id() -> bytes:
    """Return what identifies the boot of this machine, 36 bytes; zeros if the system does not."""
    try:
        return _BOOT_ID.read_bytes().strip()[:36].ljust(36, b"\0")
    except OSError:
        return bytes(36)
