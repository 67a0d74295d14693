"""Lets one thread at a time use the iterations of a loader, in the process that made the loader."""

import os
import threading
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any

from gpupipe.errors import GpupipeError


class OneThread:
    """A lock of a loader's iterations. `with` waits until no other thread is inside.

    Attributes:
        process: The process that made the loader.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        # Reentrant: Ctrl-C right after it was acquired must not make the same thread wait.
        self._lock = threading.RLock()
        self._owner = 0
        """The thread inside; 0 if there is none."""
        self._waits_for_batch = False
        """Whether the thread inside waits for a batch."""

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the loader's own."""
        return os.getpid() != self.process

    def check_process(self) -> None:
        """Raise GpupipeError in a forked process: it has none of the loader's threads."""
        if self.is_forked:
            raise GpupipeError(
                f"this loader belongs to process {self.process}, and cannot be used in one "
                "that was forked from it: load() it there"
            )

    def try_enter(self) -> bool:
        """Enter if no thread is inside; return whether this one is. `leave` undoes it."""
        if self._owner == threading.get_ident() or not self._lock.acquire(blocking=False):
            return False
        self._owner = threading.get_ident()
        return True

    def enter_for_batch(self) -> None:
        """Enter in order to wait for a batch.

        Raises:
            GpupipeError: Another thread waits for a batch.
        """
        if not self.try_enter():
            if self._waits_for_batch and self._owner != threading.get_ident():
                raise GpupipeError(
                    "two threads iterate over one loader at once: take batches in one thread and "
                    "hand them on with a queue, or load() a loader for each"
                )
            self.__enter__()
        self._waits_for_batch = True

    def leave(self) -> None:
        """Let other threads in."""
        self._owner, self._waits_for_batch = 0, False
        self._lock.release()

    def __enter__(self) -> None:
        self.check_process()
        if self._owner == threading.get_ident():
            raise GpupipeError(
                "this thread is in the middle of next() or close() of this loader, as in a signal "
                "handler or a step: raise an exception there, and close the loader where it is "
                "caught"
            )
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()


class LockedIterator(Iterator[Any]):
    """An iterator over the batches of a generator, which one thread at a time may be in.

    Args:
        batches: The generator.
        one_thread: The lock of the loader.
    """

    def __init__(self, batches: Generator[Any, None, None], one_thread: OneThread) -> None:
        self._batches, self._one_thread = batches, one_thread

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            GpupipeError: Another thread waits for a batch, or this process was forked.
        """
        self._one_thread.check_process()
        self._one_thread.enter_for_batch()
        try:
            return next(self._batches)
        finally:
            self._one_thread.leave()
