"""Save an index as one file, atomically, and memory-map it again."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import ArrayLayout, Column, FileColumn, SpanColumn
from gpupipe.dataset.index import Index
from gpupipe.dataset.strings import StringArray
from gpupipe.dataset.table_file import Arrays, OtherVersion, open_table, write_table
from gpupipe.errors import UsageError
from gpupipe.runtime.regular_file import check_regular

_log = logging.getLogger("gpupipe")
_RACY_SECONDS = 2.0
"""A file that changed this shortly before it was read may change again with the same mtime."""


def save(index: Index, path: Path) -> None:
    """Write the index to `path` atomically.

    Raises:
        OSError: The file cannot be written.
        UsageError: A column is neither a FileColumn nor a SpanColumn.
    """
    arrays = _texts("names", index.names) | {"labels": index.labels}
    columns = {
        name: _column_header(name, column, index, arrays) for name, column in index.columns.items()
    }
    arrays |= {f"values.{name}": array for name, array in index.values.items()}
    header = {
        "root": index.root,
        "classes": index.classes,
        "fingerprint": index.fingerprint,
        "extra": index.extra,
        "columns": columns,
    }
    write_table(path, header, arrays)


def _texts(key: str, texts: StringArray) -> Arrays:
    return {f"{key}.data": texts.data, f"{key}.offsets": texts.offsets}


def _column_header(name: str, column: Column, index: Index, arrays: Arrays) -> dict[str, Any]:
    """Return the column's entry in the header, and add its arrays to `arrays`."""
    key = f"columns.{name}"
    if isinstance(column, FileColumn):
        if column.paths is not index.names:
            arrays |= _texts(f"{key}.paths", column.paths)
        return {"kind": "files", "root": column.root, "named": column.paths is index.names}
    if not isinstance(column, SpanColumn):
        raise UsageError(
            f"the column '{name}' is a {type(column).__name__}, which cannot be saved: only "
            "FileColumn and SpanColumn can. Build this index without a saved copy"
        )
    arrays |= _texts(f"{key}.files", column.files) | {
        f"{key}.{part}": getattr(column, part) for part in ("file", "offset", "length")
    }
    header: dict[str, Any] = {"kind": "spans", "root": column.root, "array": None}
    if column.array is not None:
        header["array"] = [column.array.dtype, column.array.shape]
        if column.array.shapes is not None:
            arrays[f"{key}.shapes"] = column.array.shapes
    return header


def keep(index: Index, path: Path, newest: int, started: float) -> None:
    """Save an index to `path`, unless its files may have changed unnoticed while they were read.

    A file that changes twice within one tick of the file system's clock keeps its mtime. So the
    index is not saved if `newest` is less than 2 s before `started`. A cache that cannot be
    written is no error: the next load reads the files again.

    Args:
        index: The index.
        path: The file to write.
        newest: The time of the latest change of the files, in ns.
        started: The time before the files were read, in s.
    """
    if newest < (started - _RACY_SECONDS) * 1e9:
        with contextlib.suppress(OSError):
            save(index, path)


def file_state(file: str | Path) -> list[int]:
    """Return numbers that change when the file does: mtime and ctime in ns, bytes, inode.

    Call this before reading the file, so that a change during the read is noticed next time.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    status = os.stat(file)
    check_regular(status, file)
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def open_saved(path: Path) -> Index | None:
    """Memory-map the index in a file.

    Returns:
        The index; None if there is no such file, or it is of another version, truncated or
        otherwise not as `save` wrote it. The last is logged.
    """
    try:
        index = _build_index(*open_table(path))
        if _is_consistent(index):
            return index
        problem = "its columns do not fit each other"
    except (FileNotFoundError, OtherVersion):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as e:
        problem = str(e)
    _log.warning("%s: the saved index is damaged (%s): it is made again", path, problem)
    return None


def _build_index(header: dict[str, Any], arrays: Arrays) -> Index:
    """Raises KeyError, TypeError or ValueError if a part is missing or of another type."""
    names = _read_texts("names", arrays)
    columns = {
        name: _column(f"columns.{name}", entry, names, arrays)
        for name, entry in header["columns"].items()
    }
    values = {
        name.removeprefix("values."): array
        for name, array in arrays.items()
        if name.startswith("values.")
    }
    return Index(
        header["root"],
        names,
        _typed(arrays["labels"], np.int64),
        header["classes"],
        columns,
        header["fingerprint"],
        values,
        extra=header["extra"],
    )


def _column(key: str, entry: dict[str, Any], names: StringArray, arrays: Arrays) -> Column:
    """Build a column from its entry in the header."""
    if not isinstance(entry["root"], str):
        raise TypeError("no path")
    if entry["kind"] == "files":
        return FileColumn(
            entry["root"], names if entry["named"] else _read_texts(f"{key}.paths", arrays)
        )
    file, offset, length = (
        _typed(arrays[f"{key}.{part}"], dtype)
        for part, dtype in (("file", np.int32), ("offset", np.int64), ("length", np.int64))
    )
    array = None
    if entry["array"] is not None:
        dtype, shape = entry["array"]
        shapes = _typed(arrays[f"{key}.shapes"], np.int64, 2) if shape is None else None
        array = ArrayLayout(
            np.dtype(dtype).name, None if shape is None else tuple(map(int, shape)), shapes
        )
    return SpanColumn(
        entry["root"], _read_texts(f"{key}.files", arrays), file, offset, length, array
    )


def _read_texts(key: str, arrays: Arrays) -> StringArray:
    texts = StringArray(
        _typed(arrays[f"{key}.data"], np.uint8), _typed(arrays[f"{key}.offsets"], np.int64)
    )
    if not _is_ascending_to(texts.offsets, len(texts.data)):
        raise ValueError(f"'{key}' has texts outside of its bytes")
    return texts


def _is_ascending_to(offsets: NDArray[np.int64], end: int) -> bool:
    """Whether offsets begin at 0, end at `end`, and never descend."""
    ascends = bool((offsets[1:] >= offsets[:-1]).all())
    return ascends and int(offsets[0]) == 0 and int(offsets[-1]) == end


def _typed(array: NDArray[Any], dtype: Any, axes: int = 1) -> NDArray[Any]:
    if array.dtype != dtype or array.ndim != axes:
        raise ValueError("another kind of array")
    return array


def _is_consistent(index: Index) -> bool:
    """Whether the columns of an index from a file have the same length, and refer to what is."""
    if not (
        isinstance(index.root, str)
        and isinstance(index.fingerprint, str)
        and isinstance(index.extra, dict)
        and isinstance(index.classes, list)
    ):
        return False
    lengths = [len(index.names), *map(len, index.values.values())]
    in_range = _is_within(index.labels, len(index.classes))
    for column in index.columns.values():
        lengths.append(len(column))
        if isinstance(column, SpanColumn):
            lengths += [len(column.offset), len(column.length)]
            in_range &= _is_within(column.file, len(column.files))
            in_range &= _is_within(column.offset) and _is_within(column.length)
        if column.array is not None and column.array.shapes is not None:
            lengths.append(len(column.array.shapes))
    return bool(index.columns) and set(lengths) == {len(index)} and in_range


def _is_within(numbers: NDArray[Any], count: int | None = None) -> bool:
    """Whether all numbers are at least 0, and below `count`."""
    if not len(numbers):
        return True
    return int(numbers.min()) >= 0 and (count is None or int(numbers.max()) < count)
