"""Recognises failures of the machine: memory, open files, CUDA. No sample and no step causes them.

Every C++ exception in DALI reaches Python as a RuntimeError, so only its text tells them apart. The
patterns match texts of dali/core/cuda_error.h, DALI's NVML wrapper, nvImageCodec and torch. If the
text decides nothing, engines/dali/repair.py decodes an image that is known to be good.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from gpupipe.errors import EngineError

_SMALLER = "make loader.batch_size, loader.prefetch or loader.workers smaller"
_RULES = {
    r"CUDA allocation failed|Can't allocate \d+ bytes on device -?\d+|CUDA out of "
    r"memory\b|cudaErrorMemoryAllocation"
    r"|CUDA_ERROR_OUT_OF_MEMORY|CUDA error: out of memory|nvImageCodec failure: '#5'": (
        "the GPU is out of memory",
        f"{_SMALLER}, or leave it more memory",
    ),
    r"std::bad_alloc|\bbad allocation\b|Can't allocate \d+ bytes on "
    r"host|DefaultCPUAllocator|Cannot allocate memory|MemoryError": ("out of memory", _SMALLER),
    r"CUDA (?:runtime|driver) API error[^\n]*|Unhandled CUDA error[^\n]*|CUDA error: "
    r"[^\n]*|CUDNN_STATUS_\w+|nvml error \([^\n]*": (
        "the GPU, or its driver, failed",
        "start the process again; `gpupipe doctor` looks at the machine",
    ),
    r"Too many open files(?: in system)?": (
        "this process cannot open more files",
        "raise the limit (ulimit -n)",
    ),
}
"""Pattern of an error's text -> (what happened, what to do). The first match counts."""
_ERRNOS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def machine_failure(error: BaseException) -> str:
    """Return in one line what failed on the machine and what to do about it.

    Returns:
        The line, or "" if `error` is no failure of the machine.
    """
    if isinstance(error, OSError) and error.errno not in _ERRNOS:
        return ""
    text = f"{type(error).__name__}: {error}" if isinstance(error, MemoryError) else str(error)
    for pattern, (failure, advice) in _RULES.items():
        if match := re.search(pattern, text):
            return f"{failure} ({match.group().rstrip(' :.')}): {advice}"
    return ""


@contextmanager
def machine_errors() -> Iterator[None]:
    """Turn the machine's failures inside the `with` block into EngineError."""
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as e:
        if not (failure := machine_failure(e)):
            raise
        raise EngineError(failure) from e
