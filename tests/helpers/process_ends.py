"""Whether processes have ended."""

import os
import time


def is_alive(process: int) -> bool:
    """Return whether a process runs, or has ended and was not waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process: int) -> bool:
    """Wait until a process has ended; return whether it has."""
    for _ in range(100):
        if not is_alive(process):
            return True
        time.sleep(0.1)
    return False
