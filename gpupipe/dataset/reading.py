"""Reads byte ranges of files, in one call of the native extension or on several threads.

A Span says where the bytes of a sample are: a file, or a part of one.
"""

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gpupipe.runtime.files import NOT_REGULAR, open_regular
from gpupipe.runtime.installation import compute_crc32s, find_extension
from gpupipe.runtime.progress import Progress
from gpupipe.runtime.ranks import cores
from gpupipe.runtime.systems import call_after_fork

_extension = find_extension()
_NOT_REGULAR = -1
"""The extension returns this in place of errno for a FIFO, a socket or a device."""


def missing(path: str, lacking: int) -> str:
    """Return the message for a file that ends `lacking` bytes before the sample does."""
    return f"{path} ends {lacking:,} bytes before the sample does: it changed since it was indexed"


class Span(NamedTuple):
    """A byte range of a file.

    Attributes:
        path: The file.
        offset: The first byte.
        length: Number of bytes; None means the whole file.
    """

    path: str
    offset: int = 0
    length: int | None = None

    def read(self) -> NDArray[np.uint8]:
        """Read the bytes, uint8 (length,).

        Raises:
            OSError: The file cannot be read.
            ValueError: The file ends before the range does.
        """
        (data,) = read_spans([self])
        return data

    def read_ends(self, head: int, tail: int) -> tuple[bytes, bytes, int]:
        """Return the first `head` bytes, the last `tail` bytes, and the size in bytes.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file ends before the range does.
        """
        with open_regular(self.path) as f:
            size = max(0, f.seek(0, os.SEEK_END) - self.offset)
            if self.length is not None and size < self.length:
                raise ValueError(missing(self.path, self.length - size))
            size = size if self.length is None else self.length
            f.seek(self.offset)
            first = f.read(min(head, size))
            f.seek(self.offset + max(0, size - tail))
            return first, f.read(min(tail, size)), size


def read_spans(spans: Sequence[Span]) -> list[NDArray[np.uint8]]:
    """Read the bytes of spans into writable arrays, uint8 (length,) each.

    The extension `gpupipe._kernels` reads all of them in one call, without the GIL.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file ends before its span does.
    """
    parts = (
        [_read_part(span) for span in spans] if _extension is None else _extension.read_files(spans)
    )
    return [_check_length(*pair) for pair in zip(spans, parts, strict=True)]


class FileSet(Protocol):
    """Whole files, which the extension reads many at once, without the GIL."""

    def read(
        self, begin: int, end: int, sizes: NDArray[np.float64], max_pixels: int, formats: int
    ) -> int:
        """Read files `begin` to `end` - 1.

        Args:
            begin: The first file.
            end: The file after the last.
            sizes: (N, 2), of all files. The rows of those that are read become [height, width] of
                plain images, and [0, 0] for all other files, and those that cannot be read.
            max_pixels: Count images with more pixels among the others; -1 for no limit.
            formats: The formats of plain images: see image_header.PlainFormats. 0 for none.

        Returns:
            How many files have [0, 0].
        """

    def take(self, n: int) -> Any:
        """Return the bytes of a file as a writable buffer, and drop them here; None without any."""


def open_files(
    folder: bytes, names: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> FileSet | None:
    """Return files that are not read yet; None without the extension.

    Args:
        folder: The folder, with a "/" at its end.
        names: The bytes of all names; see StringArray.
        offsets: Where each name begins, int64 (N + 1,).
        rows: The positions of the names of the files.
    """
    if _extension is None:
        return None
    files: FileSet = _extension.open_files(folder, names, offsets, np.ascontiguousarray(rows))
    return files


def read_all(files: FileSet, count: int) -> list[NDArray[np.uint8]] | None:
    """Read `count` files into writable arrays, uint8 (bytes,) each.

    Returns:
        None if a file cannot be read: `read_spans` says why.
    """
    files.read(0, count, np.empty((count, 2)), -1, 0)
    contents = [files.take(n) for n in range(count)]
    if any(content is None for content in contents):
        return None
    return [np.frombuffer(content, np.uint8) for content in contents]


def read_spans_and_crcs(spans: Sequence[Span]) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """Read the bytes of spans into writable arrays, and compute the CRC-32 of each.

    The extension does both in one call, because a thread may wait for the GIL after each call.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file ends before its span does.
    """
    if _extension is None:
        contents = read_spans(spans)
        return contents, compute_crc32s(contents)
    parts = _extension.read_files_and_crcs(spans)  # for each span, (buffer, CRC) or an error number
    pairs = [(part, 0) if isinstance(part, int) else part for part in parts]
    contents = [_check_length(span, data) for span, (data, _) in zip(spans, pairs, strict=True)]
    return contents, [crc for _, crc in pairs]


def read_states(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    """Return the size in bytes and the mtime in ns of each file; None if `stat` fails.

    The extension calls `stat` for all files in one call, without the GIL.
    """
    if _extension is not None:
        return _extension.stat_files(paths)  # type: ignore[no-any-return]
    return [_read_state(path) for path in paths]


def _read_state(path: str) -> tuple[int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _check_length(span: Span, data: Any) -> NDArray[np.uint8]:
    """Return the bytes that were read of a span, uint8 (length,).

    `data` is a buffer with the bytes, or the error number of the failed read. Raises OSError for an
    error number, ValueError if the buffer is shorter than the span.
    """
    if isinstance(data, int):
        if data == _NOT_REGULAR:
            raise OSError(errno.EINVAL, NOT_REGULAR, span.path)
        raise OSError(data, os.strerror(data), span.path)
    array = np.frombuffer(data, np.uint8)
    if span.length is not None and len(array) < span.length:
        raise ValueError(missing(span.path, span.length - len(array)))
    return array


def _read_part(span: Span) -> Any:
    """Return the bytes of a span in a buffer; an error number if the span cannot be read."""
    try:
        with cast("FileIO", open_regular(span.path, buffering=0)) as f:
            length = os.fstat(f.fileno()).st_size if span.length is None else span.length
            data = np.empty(length, np.uint8)
            f.seek(span.offset)
            received = 0
            while received < length and (count := f.readinto(data[received:].data)):
                received += count
            return data[:received]
    except OSError as e:
        return _NOT_REGULAR if e.strerror == NOT_REGULAR else e.errno


_MIN_ROWS = 65
"""The calling thread reads fewer rows alone: the CPU engine's threads read 64 rows at a time."""
P = TypeVar("P")
T = TypeVar("T")


def read_rows_in_parallel(read: Callable[[int], T], rows: Sequence[int]) -> list[T]:
    """Return `read(row)` for each of `rows`, in order; on all cores for 65 rows or more.

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
call_after_fork(_get_pool.cache_clear)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Memory-map a file, and return its bytes, uint8 (bytes,).

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
        read: Reads one file.
        progress: Called with `activity`, the number of files read so far, and the number of files.
        activity: The name of the work, for the progress display.
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
