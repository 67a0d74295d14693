"""Calls a method when the interpreter exits, without keeping the method's object alive."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from weakref import WeakMethod


class ExitHandler:
    """Calls a bound method at exit, while modules and threads still work.

    Handlers are called in reverse order of creation. A forked child calls only its own.

    Args:
        method: The bound method. It should not raise.

    Example:
        >>> class Connection:
        ...     def __init__(self) -> None:
        ...         self._at_exit = ExitHandler(self.close)
        ...
        ...     def close(self) -> None:
        ...         self._at_exit.cancel()
    """

    def __init__(self, method: Callable[[], None]) -> None:
        self._method, self._process = WeakMethod(method), os.getpid()
        atexit.register(self._call)

    def cancel(self) -> None:
        """Do not call the method at exit. Idempotent."""
        atexit.unregister(self._call)

    def _call(self) -> None:
        method = self._method()
        if method is not None and os.getpid() == self._process:
            method()
