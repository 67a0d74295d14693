"""Reads the headers and the numbers of array files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.array_files import ArrayFiles, FilePart
from gpupipe.dataset.missing_paths import name_file
from gpupipe.dataset.parallel_read import read_each
from gpupipe.errors import DataError, counted, shown
from gpupipe.runtime.progress import Progress

T = TypeVar("T")
_FILES_PER_TASK = 256
"""Number of file headers that a thread reads between two progress reports."""
_MOST_AXES = 8


def read_headers(
    files: ArrayFiles, read: Callable[[str], FilePart], progress: Progress
) -> list[FilePart]:
    """Call `read` with the path of each file, on all cores.

    Returns:
        What `read` returns, in the order of the files.

    Raises:
        DataError: A file cannot be read. The message names it.
    """

    return read_each(
        files.paths,
        lambda path: _read_header(path, read),
        progress,
        "reading headers",
        _FILES_PER_TASK,
    )


def _read_header(path: str, read: Callable[[str], FilePart]) -> FilePart:
    with name_file(path):
        part = read(path)
    if len(part.shape) > _MOST_AXES:
        raise DataError(
            f"{path}: an array of {len(part.shape)} axes, more than gpupipe takes "
            f"({_MOST_AXES}): store it with fewer"
        )
    if part.count != 0 and not all(part.shape):
        raise DataError(
            f"{path}: no numbers in it (shape {shown(list(part.shape))}): leave the file out"
        )
    return part


def concatenate(files: Sequence[str], read: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
    """Read and concatenate the numbers of several files.

    Returns:
        An array of shape (N,) or (N, n).

    Raises:
        DataError: A file cannot be read, or differs from the first in dtype or row shape.
    """
    arrays = []
    for path in files:
        with name_file(path):
            arrays.append(read(path))
    for path, array in zip(files, arrays, strict=True):
        if array.shape[1:] != arrays[0].shape[1:] or array.dtype != arrays[0].dtype:
            kinds = [f"{a.dtype} {a.shape}" for a in (array, arrays[0])]
            raise DataError(
                f"{path}: {kinds[0]}, but {kinds[1]} in {files[0]}: they should differ in the "
                "number of rows alone"
            )
    return np.concatenate(arrays)


def check_labels(files: Sequence[str], numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the numbers as labels, int64 (N,).

    Raises:
        DataError: They are not integers of shape (N,) or (N, 1).
    """
    if numbers.shape[1:] == (1,):
        numbers = numbers[:, 0]
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise DataError(
            f"{files[0]}: {numbers.dtype} {numbers.shape} are no labels: there should be "
            "one whole number a sample (others can be values)"
        )
    if numbers.dtype == np.uint64:
        # Larger numbers must not turn negative: they are too large for a class either way.
        numbers = np.minimum(numbers, np.uint64(np.iinfo(np.int64).max))
    as_int64: NDArray[np.int64] = numbers.astype(np.int64)
    return as_int64


def check_count(option: str, rows: NDArray[Any], total: int) -> None:
    """Raise DataError unless there is one label or value for each of `total` samples."""
    if len(rows) != total:
        raise DataError(
            f"{option}: {len(rows):,} rows in its files for {counted(total, 'sample')}: "
            "there should be one a sample, in their order"
        )
