"""Wakes a thread that waits for sockets."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Waker:
    """A pipe whose reading end, `descriptor`, a thread polls beside its sockets. wake() may be
    called from any thread and from a signal handler, also behind close(): the number of a closed
    descriptor is soon another file's, which must not get a byte.
    """

    def __init__(self) -> None:
        self.descriptor, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Make the descriptor readable."""
        with self._lock, suppress(BlockingIOError):
            if self._in >= 0:
                os.write(self._in, b"1")

    def clear(self) -> None:
        """Read what is there."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 65536)

    def close(self) -> None:
        """Give back the pipe, when no thread polls it any more. May be called twice."""
        with self._lock:
            if self._in >= 0:
                os.close(self._in)
                os.close(self.descriptor)
                self._in = -1
