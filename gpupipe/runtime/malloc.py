"""Memory that is free but not yet given back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import os
from functools import cache
from typing import Any

_POOLED = "DALI_MALLOC_POOL_THRESHOLD"
"""DALI's own variable. It pools buffers on the CPU from 32 MB on by default; smaller ones go to the
C library and on to the system, and each batch pays for the faults of its pages again: a batch of 32
MB of raw numbers then takes 8 times as long, and images take more memory, not less.
"""


def pool() -> None:
    """Let DALI keep buffers of 1 MB and more for the next batch, where the user has not said
    otherwise. To be called before its first pipeline.
    """
    os.environ.setdefault(_POOLED, "1M")


def give_back() -> None:
    """Ask the C library to return free heap memory: without it the process swings by a tenth from
    epoch to epoch.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def release_unused_memory() -> None:
    """Let DALI return what its pools hold and nobody uses: of GPUs, and of page-locked memory. They
    never do that by themselves.

    The pool of the CPU's memory is not among them; the next loader of the process uses it again.
    """
    from nvidia.dali import backend

    with contextlib.suppress(RuntimeError):  # of a GPU that has failed: close() must not hide why
        backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]  # its stub lacks it


@cache
def _malloc_trim() -> Any:
    """glibc's malloc_trim, or None where the C library has none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
