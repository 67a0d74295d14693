"""Reads rows and files on several threads, where reading takes long and releases the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.runtime.devices import cores
from gpupipe.runtime.progress import Progress

_MIN_ROWS = 17
"""Fewer rows are read on the calling thread: the CPU engine reads 16 at a time on each thread."""
P = TypeVar("P")
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


def map_file(path: Path) -> NDArray[np.uint8]:
    """Memory-map a file, uint8 (bytes,).

    Raises:
        OSError: The file cannot be read.
    """
    if not path.stat().st_size:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, "r").view(np.ndarray)


def read_each(
    files: Sequence[P],
    read: Callable[[P], T],
    progress: Progress,
    activity: str = "indexing shards",
    files_per_task: int = 1,
) -> list[T]:
    """Call `read` with each of the files, on all cores, and return the results in order.

    Args:
        files: The files.
        read: Reads one of them.
        progress: Called with the number of files that are read.
        activity: What `progress` is told.
        files_per_task: How many files a thread reads between two calls of `progress`.
    """
    tasks = [files[n : n + files_per_task] for n in range(0, len(files), files_per_task)]
    results: list[T] = []
    with ThreadPoolExecutor(cores()) as pool:
        try:
            for done in pool.map(lambda task: [read(file) for file in task], tasks):
                results += done
                progress(activity, len(results), len(files))
        except BaseException:
            # An error, or Ctrl-C, must not wait for all the other files.
            pool.shutdown(cancel_futures=True)
            raise
    return results
