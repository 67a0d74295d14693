"""Builds the index of a data set of arrays from the headers of its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import labels
from gpupipe.dataset.array_files import ArrayFiles, FilePart
from gpupipe.dataset.columns import ArrayLayout, SpanColumn
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.strings import StringArray
from gpupipe.errors import DataError, counted


def build_index(
    files: ArrayFiles,
    parts: Sequence[FilePart],
    field: str,
    numbers: NDArray[np.int64] | None,
    values: dict[str, NDArray[Any]],
) -> Index:
    """Build the index of all samples.

    Args:
        files: The files.
        parts: The samples of each file.
        field: Name of the array's field.
        numbers: The label of each sample, int64 (N,); None if labels belong to files.
        values: Further numbers of each sample, (N,) or (N, n), by name.

    Raises:
        DataError: There is no sample, or the arrays differ in dtype or number of axes.
    """
    counts = np.array([1 if part.count is None else part.count for part in parts], np.int64)
    total = int(counts.sum())
    if not total:
        raise DataError(
            f"{files.paths[0]}: no sample in {counted(len(parts), 'file')}: see data.source"
        )
    file = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    row = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    array = _array(files, parts, counts)
    lengths = _repeat(counts, [int(np.prod(p.shape)) * np.dtype(p.dtype).itemsize for p in parts])
    offset = _repeat(counts, [p.offset for p in parts]) + row * _repeat(
        counts, [p.step for p in parts]
    )
    column = SpanColumn(
        str(files.root), StringArray.from_strings(files.names), file, offset, lengths, array
    )
    names = _names(files, parts, file, row)
    sample_labels, classes = _labels(files, counts, names, numbers)
    return build(
        str(files.root),
        names,
        sample_labels,
        classes,
        {"pairs": parts[0].pairs},
        {field: column},
        values,
    )


def _repeat(counts: NDArray[np.int64], numbers: list[int]) -> NDArray[np.int64]:
    """Repeat the number of each file for each of its samples."""
    return np.repeat(np.array(numbers, np.int64), counts)


def _names(
    files: ArrayFiles, parts: Sequence[FilePart], file: NDArray[np.int32], row: NDArray[np.int64]
) -> list[str]:
    """Name each sample after its file, or after its row in the file."""
    if all(part.count is None for part in parts):
        return files.names
    return [
        f"row {n}" if parts[f].count is not None else files.names[f]
        for f, n in zip(file.tolist(), row.tolist(), strict=True)
    ]


def _array(files: ArrayFiles, parts: Sequence[FilePart], counts: NDArray[np.int64]) -> ArrayLayout:
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
    if all(part.shape == first.shape for part in parts):
        return ArrayLayout(first.dtype, first.shape)
    return ArrayLayout(
        first.dtype,
        None,
        np.repeat(np.array([part.shape for part in parts], np.int64), counts, axis=0),
    )


def _dtype_name(part: FilePart) -> str:
    """The dtype as the user knows it: complex numbers are stored as pairs of floats."""
    return (
        {"float32": "complex64", "float64": "complex128"}[part.dtype] if part.pairs else part.dtype
    )


def _labels(
    files: ArrayFiles,
    counts: NDArray[np.int64],
    names: list[str],
    numbers: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64], list[str]]:
    if numbers is not None:
        return labels.from_numbers(numbers, lambda i: f"data.labels: sample {i} ({names[i]})")
    if files.labels is None or files.classes is None:
        return labels.make_unlabelled(len(names))
    return np.repeat(files.labels, counts), files.classes
