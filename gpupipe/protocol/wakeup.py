"""Wakes a thread that polls sockets."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Waker:
    """A pipe that a thread polls together with its sockets.

    wake() is safe from any thread, from a signal handler, and after close(). After close() it
    writes nothing: the number of the closed descriptor may belong to another file by then.

    Attributes:
        descriptor: Reading end of the pipe, to poll.
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
        """Empty the pipe, after `descriptor` was readable."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 65536)

    def close(self) -> None:
        """Close the pipe, once no thread polls it. Idempotent."""
        with self._lock:
            if self._in >= 0:
                os.close(self._in)
                os.close(self.descriptor)
                self._in = -1
