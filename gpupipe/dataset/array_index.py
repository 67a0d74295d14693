"""Reads the headers and the numbers of array files, and builds the index of their samples."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import labels
from gpupipe.dataset.columns import ArrayLayout, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.paths import name_file
from gpupipe.dataset.reading import read_each
from gpupipe.dataset.shards import find_files
from gpupipe.errors import DataError, NoSamplesError, counted, shown
from gpupipe.runtime.progress import Progress

_FILES_PER_TASK = 256
"""Number of file headers that a thread reads between two progress reports."""
_MAX_AXES = 8


@dataclass(frozen=True)
class IndexedFile:
    """The samples of one file: equally spaced arrays of one dtype and shape.

    Attributes:
        dtype: NumPy's name of the dtype of the stored numbers.
        shape: Shape of one sample.
        offset: Byte at which the first sample begins.
        count: Number of samples; None if the whole file is one sample.
        step: Bytes from the beginning of a sample to the beginning of the next.
        pairs: Whether the numbers are complex. If so, `dtype` and `shape` describe pairs of floats:
            the last axis has length 2, for the real and the imaginary part.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    count: int | None = None
    step: int = 0
    pairs: bool = False


@dataclass(frozen=True)
class ArrayFiles:
    """The array files of a data set, in the order of the index.

    Attributes:
        root: The folder that all files lie in.
        names: Paths of the files, relative to `root`.
        labels: The label of each file, int64 (N,); None if the option `files` lists the files. Then
            labels come from the option `labels`, or there are none.
        classes: The names of the classes; None if `labels` is None.
    """

    root: Path
    names: list[str]
    labels: NDArray[np.int64] | None = None
    classes: list[str] | None = None

    @property
    def paths(self) -> list[str]:
        return [os.path.join(self.root, name) for name in self.names]


def find_matching(patterns: str | tuple[str, ...], option: str) -> ArrayFiles:
    """List the files that match patterns with *, ? and {000..012}.

    Args:
        patterns: One pattern or several.
        option: The setting that holds the patterns, such as "data.files".

    Raises:
        DataError: No file matches. The message names `option`.
    """
    matches = find_files(patterns, option)
    root = Path(os.path.commonpath([path.parent for path in matches]))
    return ArrayFiles(root, [str(path.relative_to(root)) for path in matches])


def read_headers(
    files: ArrayFiles, read: Callable[[str], IndexedFile], progress: Progress
) -> list[IndexedFile]:
    """Call `read` with the path of each file, on all cores.

    Returns:
        The IndexedFile of each file, in the order of the files.

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


def _read_header(path: str, read: Callable[[str], IndexedFile]) -> IndexedFile:
    with name_file(path):
        part = read(path)
    if len(part.shape) > _MAX_AXES:
        raise DataError(
            f"{path}: an array of {len(part.shape)} axes, more than gpupipe takes "
            f"({_MAX_AXES}): store it with fewer"
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
    """Return the numbers read from `files` as labels, int64 (N,).

    Raises:
        DataError: The numbers are not integers of shape (N,) or (N, 1), or are no classes.
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
    name = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
    if len(as_int64):
        labels.from_numbers(as_int64, lambda i: f"{name}: data.labels: sample {i} (row {i})")
    return as_int64


def build_index(
    files: ArrayFiles,
    parts: Sequence[IndexedFile],
    field: str,
    numbers: NDArray[np.int64] | None,
    values: dict[str, NDArray[Any]],
) -> Index:
    """Build the index of all samples.

    Args:
        files: The files.
        parts: The samples of each file.
        field: Name of the field that holds the arrays.
        numbers: The label of each sample, int64 (N,); None if `files.labels` holds the labels, or
            if there are none.
        values: Maps the name of each further value to its numbers, (N,) or (N, n).

    Raises:
        NoSamplesError: There is no sample.
        DataError: The arrays differ in dtype or number of axes.
    """
    counts = np.array([1 if part.count is None else part.count for part in parts], np.int64)
    total = int(counts.sum())
    if not total:
        raise NoSamplesError(
            f"{files.paths[0]}: no sample in {counted(len(parts), 'file')}: see data.source"
        )
    array = _find_layout(files, parts, counts)
    file = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    row = np.arange(total, dtype=np.int64) - (np.cumsum(counts) - counts)[file]
    numbers_of_files = [(part.offset, part.step, _count_bytes(part)) for part in parts]
    # Each an array of its own: the column keeps the lengths alone.
    offset, step, length = (of_files[file] for of_files in np.array(numbers_of_files, np.int64).T)
    names = StringArray.from_strings(files.names)
    column = SpanColumn(str(files.root), names, file, offset + row * step, length, array)
    # A sample is named after its file, or "row N" if the file holds several samples.
    samples = [
        files.names[f] if parts[f].count is None else f"row {n}"
        for f, n in zip(file.tolist(), row.tolist(), strict=True)
    ]
    if files.labels is None or files.classes is None:
        sample_labels, classes = labels.number_classes(
            numbers, total, lambda i: f"data.labels: sample {i} ({samples[i]})"
        )
    else:
        sample_labels, classes = np.repeat(files.labels, counts), files.classes
    return build(
        str(files.root),
        samples,
        sample_labels,
        classes,
        {"pairs": parts[0].pairs},
        {field: column},
        values,
    )


def _count_bytes(part: IndexedFile) -> int:
    return math.prod(part.shape) * np.dtype(part.dtype).itemsize


def _find_layout(
    files: ArrayFiles, parts: Sequence[IndexedFile], counts: NDArray[np.int64]
) -> ArrayLayout:
    first = parts[0]
    for path, part in zip(files.paths, parts, strict=True):
        if part.dtype != first.dtype or part.pairs != first.pairs:
            raise DataError(
                f"{path}: {_dtype_name(part)}, but {_dtype_name(first)} in {files.paths[0]}: "
                "arrays of one field are all of one dtype"
            )
        if len(part.shape) != len(first.shape):
            axes = [
                f"{len(p.shape)} {'axes' if len(p.shape) != 1 else 'axis'}" for p in (part, first)
            ]
            raise DataError(
                f"{path}: samples of {axes[0]}, but of {axes[1]} in {files.paths[0]}: "
                "arrays of one field all have the same axes"
            )
    shapes = np.array([part.shape for part in parts], np.int64)
    used = shapes[counts > 0]
    samples = used if (used == used[0]).all() else np.repeat(shapes, counts, axis=0)
    return ArrayLayout.of_shapes(first.dtype, samples)


def _dtype_name(part: IndexedFile) -> str:
    """Return the dtype for messages: complex64 for pairs of float32, complex128 for float64."""
    complex_dtypes = {"float32": "complex64", "float64": "complex128"}
    return complex_dtypes[part.dtype] if part.pairs else part.dtype
