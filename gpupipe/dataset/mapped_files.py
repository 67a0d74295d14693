"""Reads rows from memory maps of their files, without a copy."""

import mmap
import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column, Rows
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.reading import missing
from gpupipe.runtime.files import open_regular

_MAX_FILES = 256
"""A map keeps its file open, and many systems let a process open 1,024 files."""

_State = tuple[int, int, int, int]
"""What identifies the content of a file: device, inode, size and time of the last change."""


@dataclass(frozen=True)
class MappedFiles:
    """Memory maps of the files of a column. Several threads may read from them at once.

    A file is mapped at the first read, and again after it was replaced or changed.

    Attributes:
        column: The column. Its rows are byte ranges of few files.
    """

    column: SpanColumn
    _maps: dict[int, tuple[_State, NDArray[np.uint8]]] = field(default_factory=dict)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        """Return the bytes of each of `rows`: read-only slices of the maps, uint8 (bytes,).

        Raises:
            OSError: A file cannot be read.
            ValueError: A file ends before a row does.
        """
        column = self.column
        files = column.file[rows].tolist()
        maps = {file: self._map(file) for file in set(files)}
        ends = column.offset[rows] + column.length[rows]
        spans = zip(files, column.offset[rows].tolist(), ends.tolist(), strict=True)
        slices = []
        for file, begin, end in spans:
            mapped = maps[file]
            if end > len(mapped):
                raise ValueError(missing(column.path(file), end - len(mapped)))
            slices.append(mapped[begin:end])
        return slices

    def _map(self, file: int) -> NDArray[np.uint8]:
        path = self.column.path(file)
        # A page that a truncated file no longer has would end the process.
        state = _find_state(os.stat(path))
        mapped = self._maps.get(file)
        if mapped is not None and mapped[0] == state:
            return mapped[1]
        with open_regular(path, buffering=0) as f:
            state = _find_state(os.fstat(f.fileno()))
            content = np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        self._maps[file] = state, content
        return content


def _find_state(found: os.stat_result) -> _State:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def map_files(column: Column | None) -> MappedFiles | None:
    """Return the maps of a column's files; None if it has other bytes, checks them, or many files.

    Nothing is mapped before the first read.
    """
    if type(column) is not SpanColumn or len(column.files) > _MAX_FILES:
        return None
    return MappedFiles(column)
