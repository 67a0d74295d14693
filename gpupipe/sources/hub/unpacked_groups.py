"""Images of row groups, written to the cache folder once, where they can be mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import index_cache
from gpupipe.dataset.columns import Rows, SpanColumn
from gpupipe.dataset.parallel_read import read_each
from gpupipe.dataset.strings import StringArray
from gpupipe.errors import DataError
from gpupipe.runtime.atomic_write import write_atomically
from gpupipe.runtime.progress import Progress
from gpupipe.runtime.regular_file import open_regular
from gpupipe.sources.hub.row_groups import RowGroupColumn, read_group


@dataclass(frozen=True)
class UnpackedColumn(SpanColumn):
    """The images of a RowGroupColumn, as byte ranges of files in the cache folder.

    Messages name the Parquet files, and the fingerprint is that of the RowGroupColumn. So a state
    of one also loads with the other.

    Attributes:
        groups: The column that was unpacked.
    """

    groups: RowGroupColumn | None = None

    def location(self, row: int, name: str) -> str:
        assert self.groups is not None
        return self.groups.location(row, name)

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        assert self.groups is not None
        return self.groups.fingerprint_parts(names)

    def take(self, rows: Rows) -> UnpackedColumn:
        assert self.groups is not None
        spans = super().take(rows)
        return UnpackedColumn(
            spans.root,
            spans.files,
            spans.file,
            spans.offset,
            spans.length,
            groups=self.groups.take(rows),
        )


def count_row_groups(column: RowGroupColumn) -> int:
    """Return how many row groups hold the rows of a column."""
    return len(np.unique(column.file.astype(np.int64) << 32 | column.group))


def unpack_row_groups(column: RowGroupColumn, progress: Progress) -> UnpackedColumn:
    """Write the images of all row groups to the cache folder, unless they are there.

    Args:
        column: All rows of its files, in their order.
        progress: Called with the number of files that are done.

    Raises:
        DataError: A row group cannot be read, or the cache folder cannot be written.
    """
    paths = [Path(column.root) / column.files[n] for n in range(len(column.files))]
    counts = [
        np.bincount(column.group[column.file == number]).tolist() for number in range(len(paths))
    ]
    groups_of = dict(zip(paths, counts, strict=True))

    def unpack(path: Path) -> tuple[Path, NDArray[np.int64]]:
        return _unpack_file(path, column.column, len(groups_of[path]))

    unpacked = read_each(paths, unpack, lambda _, done, total: progress("unpacking", done, total))
    for path, (_, lengths) in zip(paths, unpacked, strict=True):
        if len(lengths) != sum(groups_of[path]):
            raise DataError(f"{path} changed since it was indexed: load it again")
    offset = np.concatenate([np.cumsum(lengths) - lengths for _, lengths in unpacked])
    return UnpackedColumn(
        "",
        StringArray.from_strings(str(target) for target, _ in unpacked),
        column.file,
        offset,
        np.concatenate([lengths for _, lengths in unpacked]),
        groups=column,
    )


def _unpack_file(path: Path, column: str, groups: int) -> tuple[Path, NDArray[np.int64]]:
    """Return the file that holds a file's images one after the other, and their lengths."""
    try:
        key = index_cache.get_path("row groups", str(path), index_cache.file_state(path), column)
        target, lengths_file = key.with_suffix(".parts"), key.with_suffix(".npy")
        lengths = _open_lengths(target, lengths_file)
        if lengths is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            lengths = _write(target, path, column, groups)
            with write_atomically(lengths_file) as temporary, temporary.open("wb") as file:
                np.save(file, lengths)
    except OSError as e:
        raise DataError(
            f"{e.filename or path}: cannot be written ({e.strerror or e}): the images of {path} "
            "are unpacked there: set GPUPIPE_CACHE to a folder that can, or data.unpack=never"
        ) from e
    return target, lengths


def _open_lengths(target: Path, lengths_file: Path) -> NDArray[np.int64] | None:
    """Return the lengths of the images of an earlier load; None if they are not whole."""
    try:
        with open_regular(lengths_file) as file:
            lengths: NDArray[np.int64] = np.load(file, allow_pickle=False)
        return lengths if target.stat().st_size == lengths.sum() else None
    except (OSError, ValueError):
        return None


def _write(target: Path, path: Path, column: str, groups: int) -> NDArray[np.int64]:
    lengths: list[int] = []
    with write_atomically(target) as temporary, temporary.open("wb") as file:
        for number in range(groups):
            lengths += [file.write(image) for image in _read(path, column, number)]
    return np.array(lengths, np.int64)


def _read(path: Path, column: str, number: int) -> Sequence[Any]:
    try:
        return read_group(path, column, number)
    except ValueError as e:
        raise DataError(f"{path}: {e}; write it again, or leave it out of data.root") from e
