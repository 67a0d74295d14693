"""Failures of the machine: memory, open files, CUDA. No sample and no step is to blame for them.

DALI tells them by their words alone: every C++ exception reaches Python as a RuntimeError. The
words are those of dali/core/cuda_error.h, of its NVML wrapper, of nvImageCodec and of torch. What
they do not tell is told by an image that is known to be good: see engines/dali/known_good.py.
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
    r"host|DefaultCPUAllocator|Cannot allocate memory|MemoryError": (
        "out of memory",
        _SMALLER,
    ),
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
"""By what an error says: what happened, and what to do. The first that fits counts."""
_ERRNOS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def machine_failure(error: BaseException) -> str:
    """What failed of the machine, and what to do, in a line; empty if an error is of another
    kind.
    """
    if isinstance(error, OSError) and error.errno not in _ERRNOS:
        return ""
    said = f"{type(error).__name__}: {error}" if isinstance(error, MemoryError) else str(error)
    for words, (what, advice) in _RULES.items():
        if found := re.search(words, said):
            return f"{what} ({found.group().rstrip(' :.')}): {advice}"
    return ""


@contextmanager
def machine_errors() -> Iterator[None]:
    """Raise EngineError in place of an error that is the machine's."""
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as e:
        if not (what := machine_failure(e)):
            raise
        raise EngineError(what) from e
