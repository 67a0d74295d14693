"""Returns free memory to the operating system, and makes DALI reuse its CPU buffers."""

from __future__ import annotations

import contextlib
import ctypes
import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import device

_POOLED = "DALI_MALLOC_POOL_THRESHOLD"
"""DALI's own environment variable. By default DALI pools CPU buffers of 32 MB and more.

Smaller buffers go back to the C library and on to the system, so each batch pays for its page
faults again. A batch of 32 MB of raw numbers then takes 8 times as long, and images take more
memory, not less.
"""


def let_dali_pool_buffers() -> None:
    """Let DALI keep CPU buffers of 1 MB and more for the next batch.

    Call it before the process builds its first DALI pipeline. A user's own setting of
    DALI_MALLOC_POOL_THRESHOLD stays.
    """
    os.environ.setdefault(_POOLED, "1M")


def malloc_trim() -> None:
    """Return free heap memory to the system (malloc_trim).

    Without it, the memory of the process varies by a tenth from epoch to epoch.
    """
    trim = _find_malloc_trim()
    if trim is not None:
        trim(0)


def release_unused_memory(gpu: device) -> None:
    """Let DALI free the unused GPU memory and page-locked memory in its pools.

    DALI's pools never do so by themselves. The pool of CPU memory is not among them; the next
    loader of the process uses it again.

    Args:
        gpu: The GPU of the pipeline that was closed. Blocks that queued kernels still use are not
            unused, so this function waits for them.
    """
    import torch
    from nvidia.dali import backend

    with contextlib.suppress(RuntimeError):  # on a failed GPU: close() must not hide the cause
        torch.cuda.synchronize(gpu)
        backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]  # its stub lacks it


@cache
def _find_malloc_trim() -> Any:
    """Return glibc's malloc_trim, or None if the C library has none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
