"""What Linux, macOS and Windows do not have in common.

gpupipe is made for Linux. On macOS and Windows the package imports, and the engines cpu and
dataloader read folders and other files. What needs more calls `require_posix` first.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

from gpupipe.errors import DeviceError

IS_POSIX = hasattr(os, "fork")
"""False on Windows, which has neither forks nor what comes with them."""


_RULE = (
    "needs Linux or macOS: on Windows, gpupipe reads files with engine cpu or dataloader, without "
    "caches, servers and processes of functions. WSL 2 is Linux"
)


def require_posix(feature: str) -> None:
    """Raise DeviceError on Windows.

    Args:
        feature: What Windows cannot do, as the subject of a sentence.
    """
    if problem := explain_missing_posix(feature):
        raise DeviceError(problem)


def explain_missing_posix(feature: str) -> str:
    """Return the message of `require_posix`; "" where it raises nothing."""
    return "" if IS_POSIX else f"{feature} {_RULE}"


def call_after_fork(call: Callable[[], Any]) -> None:
    """Call a function in every child that is forked from now on."""
    if IS_POSIX:
        os.register_at_fork(after_in_child=call)


def open_nonblocking_pipe() -> tuple[int, int]:
    """Return the descriptors of a pipe to read from and to write to; neither ever waits."""
    ends = os.pipe()
    for descriptor in ends:
        os.set_blocking(descriptor, False)
    return ends


def find_c_function(name: str) -> Any:
    """Return a function of the C library; None if it lacks the function, as most lack glibc's."""
    return getattr(ctypes.CDLL(None), name, None) if IS_POSIX else None


def open_flags(*names: str) -> int:
    """Return the flags of os.open() of these names, as far as the system has them, for bytes.

    Windows would otherwise change the ends of lines.
    """
    return sum({getattr(os, name, 0) for name in (*names, "O_BINARY")})
