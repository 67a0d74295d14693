"""Two kinds of columns for images in the row groups of Parquet files.

A RowGroupColumn reads whole row groups, and each process keeps those used last in memory. For an
UnpackedColumn, the images of all row groups are written to the cache folder once, and
memory-mapped from there.
"""

import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.chunk_cache import ChunkCache
from gpupipe.dataset.columns import Column, Rows, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index_cache import get_parts_path, write_parts
from gpupipe.dataset.paths import name_file
from gpupipe.dataset.reading import read_each
from gpupipe.errors import DataError
from gpupipe.formats import DamagedError, arrow_columns, check_size
from gpupipe.formats.parquet_footer import RowGroup, check_row_group, read_row_groups
from gpupipe.runtime.files import open_regular, write_atomically
from gpupipe.runtime.progress import Progress
from gpupipe.runtime.systems import call_after_fork

groups: ChunkCache[list[Any]] = ChunkCache(lambda images: 1)
"""The images of the row groups that were used last, as pyarrow buffers, for all columns of this
process. The key is the path and mtime (ns) of a Parquet file, a column, and a row group's number.
"""


# Forked children have none of the threads that may hold a lock.
call_after_fork(groups.clear)


def read_group(path: str | os.PathLike[str], column: str, number: int, max_bytes: int) -> list[Any]:
    """Return the images in `column` of row group `number` of a Parquet file, as pyarrow buffers.

    Raises:
        ValueError: The row group cannot be read, or its images are larger than `max_bytes` on
            average (0: no limit).
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            group = _read_footer(os.fspath(path), os.stat(path).st_mtime_ns)[number]
            check_row_group(group, number, (column,), max_bytes)
            chunks = table.read_row_group(number, [column], use_threads=False).column(0).chunks
    except (pa.ArrowException, OSError, IndexError) as e:
        raise DamagedError(f"row group {number} cannot be read: {str(e).splitlines()[0]}") from e
    return [
        image.as_buffer() for chunk in chunks for image in arrow_columns.find_bytes(chunk, column)
    ]


@lru_cache(maxsize=16)
def _read_footer(path: str, mtime: int) -> list[RowGroup]:
    """Return the row groups of a file that was changed at `mtime` (ns)."""
    with open_regular(path) as file:
        return read_row_groups(file)


@dataclass(frozen=True)
class RowGroupColumn(Column):
    """A field whose samples are image files in a column of Parquet files.

    Attributes:
        root: The folder that `files` are relative to.
        files: The Parquet files.
        sizes: The size of each file in bytes, int64 (files,).
        column: The name of the column with the images.
        file: For each of the N samples, the index of its file in `files`, int32 (N,).
        group: For each sample, the number of its row group in that file, int32 (N,).
        row: For each sample, the number of its row in that row group, int32 (N,).
        max_groups: The number of row groups that a process keeps in memory.
        max_bytes: The maximum size of an image in bytes; 0 for no limit.
    """

    root: str
    files: StringArray
    sizes: NDArray[np.int64]
    column: str
    file: NDArray[np.int32]
    group: NDArray[np.int32]
    row: NDArray[np.int32]
    max_groups: int
    max_bytes: int

    def __len__(self) -> int:
        return len(self.row)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        """Return the image file of each row, as bytes, in the order of `rows`.

        Rows of the same row group are read one after the other, while the group is in memory.
        """
        order = np.lexsort((self.group[rows], self.file[rows]))
        images: dict[int, NDArray[np.uint8]] = {}
        for position in order.tolist():
            images[position] = self._read_row(int(rows[position]))
        return [images[position] for position in range(len(rows))]

    def _read_row(self, row: int) -> NDArray[np.uint8]:
        path = os.path.join(self.root, self.files[int(self.file[row])])
        number = int(self.group[row])
        (images,) = groups.get(
            [(path, os.stat(path).st_mtime_ns, self.column, number)],
            lambda _: [read_group(path, self.column, number, self.max_bytes)],
            self.max_groups,
        )
        if self.row[row] >= len(images):
            raise ValueError(f"{path} changed since it was indexed")
        image = np.frombuffer(images[self.row[row]], np.uint8)
        check_size(len(image), self.max_bytes)
        return image

    def location(self, row: int, name: str) -> str:
        return f"{os.path.join(self.root, self.files[int(self.file[row])])}:{name}"

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return [*self.files.fingerprint_parts, self.sizes, self.file, self.group, self.row]

    @property
    def can_sample(self) -> bool:
        return False  # a row group is read whole, and its file's size is in the fingerprint

    def take(self, rows: Rows) -> "RowGroupColumn":
        return replace(self, file=self.file[rows], group=self.group[rows], row=self.row[rows])


@dataclass(frozen=True)
class UnpackedColumn(SpanColumn):
    """The images of a RowGroupColumn, as byte ranges of files in the cache folder.

    Error messages name the Parquet files, not those in the cache folder. The fingerprint equals
    that of the RowGroupColumn, so a loader state that was saved with one of the columns also loads
    with the other.

    Attributes:
        groups: The RowGroupColumn whose images were written to the cache folder.
    """

    groups: RowGroupColumn = field(kw_only=True)

    def location(self, row: int, name: str) -> str:
        return self.groups.location(row, name)

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return self.groups.fingerprint_parts(names)

    def take(self, rows: Rows) -> Self:
        return replace(super().take(rows), groups=self.groups.take(rows))


def count_row_groups(column: RowGroupColumn) -> int:
    """Return how many different row groups the rows of a column lie in."""
    return len(np.unique(column.file.astype(np.int64) << 32 | column.group))


def unpack_row_groups(column: RowGroupColumn, progress: Progress) -> UnpackedColumn:
    """Return a column of the same images that reads them from the cache folder.

    Images that are not in the cache folder yet are written there first.

    Args:
        column: A column that holds all rows of its files, in the order of the files.
        progress: Called with ("unpacking", files done, files in all).

    Raises:
        DataError: A row group cannot be read, or the cache folder cannot be written.
    """
    paths = [Path(column.root) / column.files[n] for n in range(len(column.files))]
    groups_of = {path: column.group[column.file == n] for n, path in enumerate(paths)}

    def unpack(path: Path) -> tuple[Path, NDArray[np.int64]]:
        groups = groups_of[path]
        count = int(groups.max(initial=-1)) + 1
        target, lengths = _unpack_file(path, column.column, count, column.max_bytes)
        if len(lengths) != len(groups):
            raise DataError(f"{path} changed since it was indexed: load it again")
        return target, lengths

    unpacked = read_each(paths, unpack, progress, "unpacking")
    offset = np.concatenate([np.cumsum(lengths) - lengths for _, lengths in unpacked])
    return UnpackedColumn(
        "",
        StringArray.from_strings(str(target) for target, _ in unpacked),
        column.file,
        offset,
        np.concatenate([lengths for _, lengths in unpacked]),
        groups=column,
    )


def _unpack_file(
    path: Path, column: str, groups: int, max_bytes: int
) -> tuple[Path, NDArray[np.int64]]:
    """Write the images of a Parquet file to one file in the cache folder, unless that file exists.

    Args:
        path: The Parquet file.
        column: The name of the column with the images.
        groups: The number of row groups in the Parquet file.
        max_bytes: The maximum size of an image in bytes; 0 for no limit.

    Returns:
        The path of the file in the cache folder.
        The size of each image in bytes, int64 (images,).
    """
    key = ("row groups", column)
    with name_file(path):
        target = get_parts_path(path, key)
    lengths_file = target.with_suffix(".npy")
    unpacked = _open_lengths(target, lengths_file)
    if unpacked is not None:
        return target, unpacked
    lengths: list[int] = []
    reason = f"the images of {path} are unpacked there (unless data.unpack=never)"
    with write_parts(path, key, reason) as (_, file):
        for number in range(groups):
            with name_file(path, "write it again, or leave it out of data.root"):
                images = read_group(path, column, number, max_bytes)
                for image in images:
                    check_size(len(image), max_bytes, f"row group {number}: ")
            lengths += [file.write(image) for image in images]
        with write_atomically(lengths_file) as temporary, temporary.open("wb") as out:
            np.save(out, np.array(lengths, np.int64))
    return target, np.array(lengths, np.int64)


def _open_lengths(target: Path, lengths_file: Path) -> NDArray[np.int64] | None:
    """Return the size of each image, as an earlier load saved it in `lengths_file`.

    Return None if the file is missing, or if the sizes do not add up to the size of `target`.
    """
    try:
        with open_regular(lengths_file) as file:
            lengths: NDArray[np.int64] = np.load(file, allow_pickle=False)
        return lengths if target.stat().st_size == lengths.sum() else None
    except (OSError, ValueError):
        return None
