"""A limit of bytes per second that all processes of a cache share."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

from gpupipe.runtime.file_lock import hold_lock

_BURST_SECONDS = 0.5
_FORMAT = struct.Struct("<d")


class RateLimit:
    """A rate limit that processes share through a file.

    Args:
        path: File with one float64: until when the bytes taken so far last, in seconds since 1970.
        bytes_per_second: The limit; None for no limit.
        pause: Waits a number of seconds.
    """

    def __init__(
        self, path: Path, bytes_per_second: int | None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._path, self._rate, self._pause = path, bytes_per_second, pause

    def take(self, size: int) -> None:
        """Wait until `size` more bytes are within the limit."""
        if self._rate is None:
            return
        with hold_lock(self._path), self._path.open("r+b", buffering=0) as f:
            now, stored = time.time(), f.read(_FORMAT.size)
            until = (
                max(
                    _FORMAT.unpack(stored)[0] if len(stored) == _FORMAT.size else 0.0,
                    now - _BURST_SECONDS,
                )
                + size / self._rate
            )
            f.seek(0)
            f.write(_FORMAT.pack(until))
        self._pause(max(0.0, until - now))
