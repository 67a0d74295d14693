"""What went wrong in a call of a user's function: the reason, the line, and the traceback."""

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gpupipe.errors import name_error
from gpupipe.runtime.failures import machine_failure

_FAILURES: deque[Exception] = deque(maxlen=1)


@dataclass(eq=False)
class CallFailedError(Exception):
    """A call of a function failed, in this process or in another.

    Attributes:
        reason: What the function did, after its name: "raised LookupError: ... at FILE:LINE".
        text: The traceback, or the stack.
        message: The message of the exception; "" if there was none.
        kinds: The qualified names of the exception's class and of its bases.
        machine: The failure of the machine that caused it; "" if it is the function's.
        is_timeout: Whether the call took longer than it may.
    """

    reason: str
    text: str = ""
    message: str = ""
    kinds: tuple[str, ...] | list[str] = ()
    machine: str = ""
    is_timeout: bool = False

    def __str__(self) -> str:
        return self.reason

    def is_a(self, kind: type[BaseException]) -> bool:
        """Return whether the function raised an exception of a class."""
        return _name(kind) in self.kinds


def explain_failure(
    error: BaseException, find_line: Callable[[traceback.StackSummary], str]
) -> CallFailedError:
    """Describe what a function raised.

    Args:
        error: The exception.
        find_line: Returns " at FILE:LINE" of the innermost line of the function's file, or "".
    """
    if isinstance(error, CallFailedError):
        return error
    line = find_line(traceback.extract_tb(error.__traceback__))
    return CallFailedError(
        f"raised {name_error(error)}{line}",
        "".join(traceback.format_exception(error)),
        str(error),
        [_name(kind) for kind in type(error).__mro__],
        machine_failure(error),
    )


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def record_failure(error: Exception) -> None:
    """Keep an error that a native engine may replace by its own; `take_failure` returns it."""
    _FAILURES.append(error)


def take_failure() -> Exception | None:
    """Return the last recorded error, and forget it; None if there is none."""
    return _FAILURES.pop() if _FAILURES else None
