"""Images in the row groups of Parquet files: a column that keeps the last row groups it read."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column, Rows
from gpupipe.dataset.strings import StringArray
from gpupipe.formats import Damaged, arrow_columns

Key = tuple[str, int, str, int]
"""A file, when it changed, a column and the number of a row group."""


class _Group:
    """The images of a row group, once they are read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.images: list[Any] | None = None


class _Groups:
    """The row groups that this process read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: OrderedDict[Key, _Group] = OrderedDict()

    def get(self, key: Key, most: int) -> list[Any]:
        """Return the images of a row group as pyarrow buffers; keep the last `most` groups."""
        with self._lock:
            group = self._groups.setdefault(key, _Group())
            self._groups.move_to_end(key)
            while len(self._groups) > most:
                self._groups.popitem(last=False)
        with group.lock:  # other threads wait for this group alone
            if group.images is None:
                path, _, column, number = key
                group.images = read_group(path, column, number)
            return group.images

    def __len__(self) -> int:
        return len(self._groups)

    def clear(self) -> None:
        """Forget all row groups."""
        self.__init__()  # type: ignore[misc]  # a thread that does not exist may hold the lock


groups = _Groups()


# Forked children have none of the threads that may hold a lock.
os.register_at_fork(after_in_child=groups.clear)


def read_group(path: str | os.PathLike[str], column: str, number: int) -> list[Any]:
    """Return the images of a row group as pyarrow buffers.

    Raises:
        ValueError: It cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            chunks = table.read_row_group(number, [column], use_threads=False).column(0).chunks
    except (pa.ArrowException, OSError) as e:
        raise Damaged(f"row group {number} cannot be read: {str(e).splitlines()[0]}") from e
    return [
        image.as_buffer() for chunk in chunks for image in arrow_columns.find_bytes(chunk, column)
    ]


@dataclass(frozen=True)
class RowGroupColumn(Column):
    """A field whose samples are image files in a column of Parquet files.

    Attributes:
        root: The folder that `files` are relative to.
        files: The files.
        sizes: The size of each file in bytes, int64 (files,).
        column: The column of the images.
        file: The number of each row's file, int32 (N,).
        group: The number of each row's row group in its file, int32 (N,).
        row: The number of each row in its row group, int32 (N,).
        most: How many row groups a process keeps.
    """

    root: str
    files: StringArray
    sizes: NDArray[np.int64]
    column: str
    file: NDArray[np.int32]
    group: NDArray[np.int32]
    row: NDArray[np.int32]
    most: int

    def __len__(self) -> int:
        return len(self.row)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        """Return the bytes of each row. Rows of one row group are read together."""
        order = np.lexsort((self.group[rows], self.file[rows]))
        images: dict[int, NDArray[np.uint8]] = {}
        for place in order.tolist():
            images[place] = self._read_row(int(rows[place]))
        return [images[place] for place in range(len(rows))]

    def _read_row(self, row: int) -> NDArray[np.uint8]:
        path = os.path.join(self.root, self.files[int(self.file[row])])
        key = (path, os.stat(path).st_mtime_ns, self.column, int(self.group[row]))
        images = groups.get(key, self.most)
        if self.row[row] >= len(images):
            raise ValueError(f"{path} changed since it was indexed")
        return np.frombuffer(images[self.row[row]], np.uint8)

    def location(self, row: int, name: str) -> str:
        return f"{os.path.join(self.root, self.files[int(self.file[row])])}:{name}"

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return [*self.files.fingerprint_parts, self.sizes, self.file, self.group, self.row]

    @property
    def can_sample(self) -> bool:
        return False  # a row group is read whole, and its file's size is in the fingerprint

    def take(self, rows: Rows) -> RowGroupColumn:
        return replace(self, file=self.file[rows], group=self.group[rows], row=self.row[rows])
