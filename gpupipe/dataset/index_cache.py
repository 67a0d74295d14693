"""Saves indexes in the cache folder, memory-maps them, and detects changed data files."""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_columns import AnnotationColumn, explain_inconsistency
from gpupipe.dataset.annotation_faults import Faults
from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.dataset.columns import Column, StringArray
from gpupipe.dataset.file_columns import FileColumn, SpanColumn
from gpupipe.dataset.index import Index
from gpupipe.dataset.table_file import OtherVersionError, open_table, write_table
from gpupipe.errors import DataError, UsageError
from gpupipe.formats.stored_arrays import ChunkPlaces
from gpupipe.runtime.files import cache_dir, check_regular, write_atomically

_log = logging.getLogger("gpupipe")
RACY_SECONDS = 2.0
"""A file that changed in the last 2 s before it was read may change again with the same mtime."""


Columns = tuple[type[Column], ...]
"""The classes of columns that can be saved: dataclasses of arrays."""
BASIC_COLUMNS: Columns = (FileColumn, SpanColumn)


def get_path(*key: Any) -> Path:
    """Return the path at which to save the index that `key` (plain JSON, paths) identifies."""
    text = json.dumps(key, default=str).encode()  # ASCII, whatever bytes the paths hold
    return cache_dir() / "index" / f"{hashlib.blake2b(text, digest_size=16).hexdigest()}.idx"


def load_or_build(
    saved: Path,
    files: Iterable[str | Path],
    read: Callable[[], Index],
    also: Callable[[Index], bool] = lambda index: True,
    previous: Index | None = None,
    columns: Columns = BASIC_COLUMNS,
) -> Index:
    """Return an earlier index if it is still valid, else build a new index and save it.

    Args:
        saved: The path of the saved index.
        files: The files that the index is built from. If one changed, the index is built again.
        read: Builds the index.
        also: A further check: returns whether an earlier index is valid. Called only if no file has
            changed.
        previous: The index that this process has built before, if any.
        columns: The classes that columns may have.

    Raises:
        OSError: One of `files` cannot be read.
    """
    (state, newest), started = _get_state(files), time.time()
    for index in (previous, open_saved(saved, columns)):
        if index is not None and index.extra.get("files") == state and also(index):
            return index
    index = read()
    index = replace(index, extra=index.extra | {"files": state})
    save_unless_racy(index, saved, newest, started, columns)
    return index


def _get_state(files: Iterable[str | Path]) -> tuple[str, int]:
    """Return a hash of the files' names and states, and the time of the latest change in ns.

    A hash keeps the saved index small: there may be a million files.
    """
    digest, newest = hashlib.blake2b(digest_size=16), 0
    for file in files:
        state = file_state(file)
        newest = max(newest, *state[:2])
        digest.update(os.fsencode(file) + repr(state).encode())
    return digest.hexdigest(), newest


def get_parts_path(path: Path, key: Sequence[Any]) -> Path:
    """Return the path of the file that `write_parts` writes for the shard `path`."""
    name, *options = key
    return get_path(name, str(path), file_state(path), *options).with_suffix(".parts")


@contextmanager
def write_parts(path: Path, key: Sequence[Any], reason: str) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield the path of a new file in the cache folder, and the open file.

    The caller writes to this file what cannot be read from the shard itself, such as compressed
    images.

    Args:
        path: The shard.
        key: A name and options, as plain JSON. With the shard's path and `file_state`, they
            identify the new file.
        reason: Why the file is needed, for the error message.

    Raises:
        DataError: The file cannot be written.
    """
    target = get_parts_path(path, key)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(target) as temporary, temporary.open("wb") as file:
            yield target, file
    except OSError as e:
        raise DataError(
            f"{target}: cannot be written ({e.strerror or e}): {reason}: set GPUPIPE_CACHE to a "
            "folder that can"
        ) from e


PARTS = ".parts"
"""The ending of a file that `write_parts_beside` writes."""


@contextmanager
def write_parts_beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield the path of a new file beside a shard, with the ending PARTS, and the open file.

    It is for what cannot be read from a shard of the growing cache itself. See `write_parts`.
    """
    target = path.with_suffix(PARTS)
    with target.open("wb") as file:
        yield target, file


def save(index: Index, path: Path, columns: Columns = BASIC_COLUMNS) -> None:
    """Write the index to `path` atomically.

    Args:
        index: The index.
        path: The file.
        columns: The classes that columns may have.

    Raises:
        OSError: The file cannot be written.
        UsageError: The class of a column is not in `columns`.
    """
    for name, column in index.columns.items():
        if type(column) not in columns:
            allowed = " and ".join(kind.__name__ for kind in columns)
            raise UsageError(
                f"the column '{name}' is a {type(column).__name__}, which cannot be saved: only "
                f"{allowed} can. Build this index without a saved copy"
            )
    write_table(path, index)


def save_unless_racy(
    index: Index, path: Path, newest: int, started: float, columns: Columns = BASIC_COLUMNS
) -> None:
    """Save an index to `path`, unless its files may have changed unnoticed while they were read.

    A file that changes twice within one tick of the file system's clock keeps its mtime. So the
    index is saved only if the latest change was more than 2 s before reading began. If the cache
    folder cannot be written, nothing is saved or raised: the next load reads the files again.

    Args:
        index: The index.
        path: The file to write.
        newest: The time of the latest change of the files, in ns.
        started: The time at which reading the files began, in s.
        columns: The classes of columns that can be saved; a column of another class is an error.
    """
    if newest < (started - RACY_SECONDS) * 1e9:
        with contextlib.suppress(OSError):
            save(index, path, columns)


def file_state(file: str | Path) -> list[int]:
    """Return numbers that change when the file does: mtime and ctime in ns, bytes, inode.

    Call this before reading the file, so that a change during the read is noticed next time.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    status = os.stat(file)
    check_regular(status, file)
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def open_saved(path: Path, columns: Columns = BASIC_COLUMNS) -> Index | None:
    """Memory-map the index in a file.

    Args:
        path: The file.
        columns: The classes that columns may have.

    Returns:
        The index; None if there is no such file, another version of gpupipe wrote it, or it is
        damaged. Damage is logged.
    """
    try:
        index = open_table(path, Index, columns)
        if _is_consistent(index):
            return index
        problem = "its columns do not fit each other"
    except (FileNotFoundError, OtherVersionError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as e:
        problem = str(e)
    _log.warning("%s: the saved index cannot be used (%s): it is made again", path, problem)
    return None


def _is_ascending_to(offsets: NDArray[np.int64], end: int) -> bool:
    """Return whether offsets begin at 0, end at `end`, and never descend."""
    ascends = bool((offsets[1:] >= offsets[:-1]).all())
    return ascends and int(offsets[0]) == 0 and int(offsets[-1]) == end


def _is_consistent(index: Index) -> bool:
    """Return whether an index has columns of equal length, and labels and offsets in range."""
    arrays = [index.labels, *index.values.values(), *index.sizes.values()]
    is_labelled = _is_within(index.labels, len(index.classes)) or bool((index.labels == -1).all())
    is_valid = is_labelled and bool(index.columns)
    is_valid &= not explain_inconsistency(index.annotations, len(index))
    is_valid &= index.faults.is_consistent(len(index))
    for part in {id(part): part for part in _iter_parts(index)}.values():
        if isinstance(part, StringArray):
            is_valid &= _is_ascending_to(part.offsets, len(part.data))
        elif isinstance(part, ChunkColumn):
            is_valid &= part.table.is_consistent(len(part.files))
            is_valid &= _is_within(part.grid, len(part.table.grids))
            is_valid &= _is_within(part.store, len(part.stores))
        elif isinstance(part, SpanColumn):
            is_valid &= _is_within(part.file, len(part.files))
            is_valid &= _is_within(part.offset) and _is_within(part.length)
        if not isinstance(part, StringArray | AnnotationColumn | Faults | ChunkPlaces):
            arrays += [array for array in vars(part).values() if isinstance(array, np.ndarray)]
    lengths = {len(array) for array in arrays} | {len(index.names)}
    lengths |= {len(column) for column in index.columns.values()}
    return is_valid and lengths == {len(index)}


def _iter_parts(value: Any) -> Iterator[Any]:
    """Yield a dataclass, and all dataclasses in its fields, at any depth."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _iter_parts(part)
    elif is_dataclass(value):
        yield value
        yield from _iter_parts(vars(value))


def _is_within(numbers: NDArray[Any], count: int | None = None) -> bool:
    """Return whether an array has one axis, and numbers of at least 0 and below `count`."""
    if numbers.ndim != 1 or not len(numbers):
        return numbers.ndim == 1
    return int(numbers.min()) >= 0 and (count is None or int(numbers.max()) < count)
