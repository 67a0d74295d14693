"""Data sets of files with arrays: which files there are, what is in them, and the index of all
samples.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import class_folders, index_cache, index_file, labels
from gpupipe.dataset.index import ArrayLayout, Index, SpanColumn, StringArray, build
from gpupipe.dataset.manifest_paths import folder, inside
from gpupipe.dataset.shards import paths
from gpupipe.dataset.source import Progress
from gpupipe.errors import DataError, counted, shown
from gpupipe.formats import Damaged, manifest
from gpupipe.runtime.devices import cores
from gpupipe.schema.field_types import expanded

T = TypeVar("T")
_AT_ONCE = 256
"""Files whose headers a thread reads before it says so."""
_MOST_AXES = 8
_EXISTS = "no such file: set data.manifest to the list of the samples"


@dataclass(frozen=True)
class FilePart:
    """What a file holds: samples of `shape`, `step` bytes from one to the next, the first at
    `offset`. pairs: complex numbers, as formats.npy has them.

    count: None for one sample that is the whole file.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    count: int | None = None
    step: int = 0
    pairs: bool = False


@dataclass(frozen=True)
class ArrayFiles:
    """Files with arrays, relative to `root`, in order.

    labels: of each file, where that is where labels come from.
    """

    root: Path
    names: list[str]
    labels: NDArray[np.int64] | None = None
    classes: list[str] | None = None

    @property
    def paths(self) -> list[str]:
        return [os.path.join(self.root, name) for name in self.names]


# --- which files there are


def in_classes(root: Path, extensions: tuple[str, ...], progress: Progress) -> ArrayFiles:
    """Those of a folder a class. Raises DataError."""
    top = expanded(root)
    if not top.is_dir():
        raise DataError(f"{root}: no such folder: put the data there, or set data.root")
    found = class_folders.scan(top.resolve(), extensions, "array", progress)
    return ArrayFiles(top.resolve(), found.paths, found.labels, found.classes)


def in_list(
    file: Path, root: Path | None, field: str, label: str | None, progress: Progress
) -> ArrayFiles:
    """Those that a manifest lists, as the source file_list has it. Raises DataError."""
    try:
        top = folder(root or file.parent)
        rows = manifest.read(
            file,
            manifest.Wanted({field: "path"}, label, sure=False),
            lambda count: progress("reading", count, None),
        )
    except OSError as e:
        is_missing = isinstance(e, FileNotFoundError)
        reason = _EXISTS if is_missing else f"cannot be read: {e.strerror or e}"
        raise DataError(f"{file}: {reason}") from e
    if not len(rows):
        raise DataError(f"{file}: no rows: list at least one file, a line each")
    names = inside(rows, rows.paths[field], [str((root or file.parent).absolute()), str(top)])
    found, classes = (
        labels.of_texts(rows.labels, rows.where) if rows.labels else labels.none(len(rows))
    )
    return ArrayFiles(top, names, found, classes)


def matching(patterns: str | tuple[str, ...], option: str) -> ArrayFiles:
    """Those of patterns, as the source webdataset has it. Raises DataError."""
    found = paths(patterns, option)
    root = Path(os.path.commonpath([path.parent for path in found]))
    return ArrayFiles(root, [str(path.relative_to(root)) for path in found])


# --- what is kept of an index


def cached(key: Any, files: Iterable[str], read: Callable[[], Index], made: Index | None) -> Index:
    """The index that was made before, as long as none of the files changed since, else what `read`
    makes. made: by this process. Raises DataError.
    """
    saved, started = index_cache.place(key), time.time()
    state, newest = _state(files)
    for index in (made, index_file.open_saved(saved)):
        if index is not None and index.extra.get("state") == state:
            return index
    index = read()
    index = replace(index, extra=index.extra | {"state": state})
    index_file.keep(index, saved, newest, started)
    return index


def _state(files: Iterable[str]) -> tuple[str, int]:
    """A hash of the names of files and of when they were last changed, and when the last of them
    was, ns. A hash, because there may be a million.
    """
    digest, newest = hashlib.blake2b(digest_size=16), 0
    for file in files:
        try:
            state = index_file.file_state(Path(file))
        except OSError as e:
            raise DataError(f"{file}: {_reason(e)}") from e
        newest = max(newest, *state[:2])
        digest.update(os.fsencode(file) + repr(state).encode())
    return digest.hexdigest(), newest


def _reason(e: OSError) -> str:
    return (
        "no such file: put it there, or leave it out"
        if isinstance(e, FileNotFoundError)
        else f"cannot be read: {e.strerror or e}"
    )


# --- what is in them


def read_all(
    files: ArrayFiles, read: Callable[[str], FilePart], progress: Progress
) -> list[FilePart]:
    """What each file holds, as `read` finds it in its path, on all cores.

    Raises DataError, which names the file.
    """

    def some(names: list[str]) -> list[FilePart]:
        return [_read(os.path.join(files.root, name), read) for name in names]

    found: list[FilePart] = []
    with ThreadPoolExecutor(cores()) as pool:
        try:
            for parts in pool.map(some, _batches(files.names)):
                found += parts
                progress("reading headers", len(found), len(files.names))
        except BaseException:
            pool.shutdown(
                cancel_futures=True
            )  # an error, or Ctrl-C, does not wait for all the other files
            raise
    return found


def _batches(names: list[str]) -> Iterable[list[str]]:
    rest = iter(names)
    while batch := list(islice(rest, _AT_ONCE)):
        yield batch


def _blamed(path: str, read: Callable[[str], T]) -> T:
    """What `read` finds in a file. Raises DataError."""
    try:
        return read(path)
    except OSError as e:
        raise DataError(f"{path}: {_reason(e)}") from e
    except ValueError as e:
        advice = "; write the file again, or leave it out" if isinstance(e, Damaged) else ""
        raise DataError(f"{path}: {e}{advice}") from e


def _read(path: str, read: Callable[[str], FilePart]) -> FilePart:
    part = _blamed(path, read)
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


# --- the index


def indexed(
    files: ArrayFiles,
    parts: Sequence[FilePart],
    field: str,
    numbers: NDArray[np.int64] | None,
    values: dict[str, NDArray[Any]],
) -> Index:
    """The index of all samples.

    numbers: their labels, where those are of samples and not of files. Raises DataError where files
    do not fit each other.
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
    lengths = _each(counts, [int(np.prod(p.shape)) * np.dtype(p.dtype).itemsize for p in parts])
    offset = _each(counts, [p.offset for p in parts]) + row * _each(counts, [p.step for p in parts])
    column = SpanColumn(str(files.root), StringArray.of(files.names), file, offset, lengths, array)
    names = _names(files, parts, file, row)
    found, classes = _labels(files, counts, names, numbers)
    return build(
        str(files.root), names, found, classes, {"pairs": parts[0].pairs}, {field: column}, values
    )


def _each(counts: NDArray[np.int64], numbers: list[int]) -> NDArray[np.int64]:
    """A number of each file, for each of its samples."""
    return np.repeat(np.array(numbers, np.int64), counts)


def _names(
    files: ArrayFiles, parts: Sequence[FilePart], file: NDArray[np.int32], row: NDArray[np.int64]
) -> list[str]:
    """What samples are called: the file, or the row in it."""
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
                f"{path}: {_told(part)}, but {_told(first)} in {files.paths[0]}: arrays of "
                "one field are all of one dtype"
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


def _told(part: FilePart) -> str:
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
        return labels.of_numbers(numbers, lambda i: f"data.labels: sample {i} ({names[i]})")
    if files.labels is None or files.classes is None:
        return labels.none(len(names))
    return np.repeat(files.labels, counts), files.classes


def joined(files: Sequence[str], read: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
    """The numbers in all of the files: (N,) or (N, n).

    Raises DataError where one cannot be read, or they do not fit each other.
    """
    found = [_blamed(path, read) for path in files]
    for path, array in zip(files, found, strict=True):
        if array.shape[1:] != found[0].shape[1:] or array.dtype != found[0].dtype:
            told = [f"{a.dtype} {a.shape}" for a in (array, found[0])]
            raise DataError(
                f"{path}: {told[0]}, but {told[1]} in {files[0]}: they should differ in the "
                "number of rows alone"
            )
    return np.concatenate(found)


def whole(files: Sequence[str], numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers as labels, int64 (N,). Raises DataError where they can be none."""
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise DataError(
            f"{files[0]}: {numbers.dtype} {numbers.shape} are no labels: there should be "
            "one whole number a sample (others can be values)"
        )
    if numbers.dtype == np.uint64:
        numbers = np.minimum(
            numbers, np.uint64(np.iinfo(np.int64).max)
        )  # too large for a class all the same, and not negative
    found: NDArray[np.int64] = numbers.astype(np.int64)
    return found


def check_count(option: str, found: NDArray[Any], total: int) -> None:
    """Raises DataError where there are not as many labels or values as samples."""
    if len(found) != total:
        raise DataError(
            f"{option}: {len(found):,} rows in its files for {counted(total, 'sample')}: "
            "there should be one a sample, in their order"
        )
