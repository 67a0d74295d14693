"""A limit of bytes a second that all processes of a cache keep together."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

from gpupipe.cache.locks import exclusive

_BURST_SECONDS = 0.5
_FORMAT = struct.Struct("<d")


class Rate:
    """bytes_per_second: None for no limit.

    path: a file that says until when what was taken so far lasts, s since 1970.
    """

    def __init__(
        self, path: Path, bytes_per_second: int | None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._path, self._rate, self._pause = path, bytes_per_second, pause

    def take(self, size: int) -> None:
        """Wait until `size` bytes more are within the limit."""
        if self._rate is None:
            return
        with exclusive(self._path), self._path.open("r+b", buffering=0) as f:
            now, said = time.time(), f.read(_FORMAT.size)
            until = (
                max(
                    _FORMAT.unpack(said)[0] if len(said) == _FORMAT.size else 0.0,
                    now - _BURST_SECONDS,
                )
                + size / self._rate
            )
            f.seek(0)
            f.write(_FORMAT.pack(until))
        self._pause(max(0.0, until - now))
