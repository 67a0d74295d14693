"""Reads rows on several threads, for columns whose reading takes long and releases the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from gpupipe.runtime.devices import cores

_MIN_ROWS = 17
"""Fewer rows are read on the calling thread: the CPU engine reads 16 at a time on each thread."""
T = TypeVar("T")


def read_rows_in_parallel(read: Callable[[int], T], rows: Sequence[int]) -> list[T]:
    """Return `read(row)` for each of `rows`, in order; on all cores if there are several rows.

    A worker of a DataLoader, which reads one row at a time, starts no threads.
    """
    count = cores()
    if len(rows) < _MIN_ROWS or count == 1:
        return [read(row) for row in rows]
    return list(_get_pool(count).map(read, rows))


@lru_cache(maxsize=1)
def _get_pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "gpupipe-read")


# Forked children have none of the threads: they start their own.
os.register_at_fork(after_in_child=_get_pool.cache_clear)
