"""Reads samples that are parts of large files as slices of memory maps.

Slicing copies no bytes, and Python never touches them.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import ArrayLayout
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.reading import missing
from gpupipe.engines.dali.field_reader import PLACEHOLDER, CannotRead
from gpupipe.runtime.files import open_regular

_MAX_OPEN = 8192
"""How many files stay mapped. Mapping a file of 1 MB again costs twice as much as copying it. Linux
lets a process have 65,530 maps by default. A map that is dropped here stays in memory until the
last slice of it is gone.
"""


class MmapReader:
    """The FieldReader of samples that are parts of files: it returns slices of memory maps."""

    def __init__(self, column: SpanColumn) -> None:
        self._column = column
        self._maps: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    def read_encoded(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [data if len(data) == size else PLACEHOLDER for data, size in self._slices(ids)]

    def read_arrays(self, ids: NDArray[np.int64]) -> list[NDArray[np.generic]]:
        array = self._column.array
        assert array is not None
        return [
            self._array(int(i), array, data, size)
            for i, (data, size) in zip(ids, self._slices(ids), strict=True)
        ]

    def unmap_files(self, files: set[int]) -> None:
        """Drop the maps of these files.

        The system unmaps a file when the last batch with slices of it is gone.

        Args:
            files: Positions in SpanColumn.files.
        """
        for file in files & self._maps.keys():
            del self._maps[file]

    def _slices(self, ids: NDArray[np.int64]) -> list[tuple[NDArray[np.uint8], int]]:
        """The available bytes of each sample, and the size that the index states."""
        column = self._column
        files, offsets = column.file[ids].tolist(), column.offset[ids].tolist()
        lengths = column.length[ids].tolist()
        slices = [
            self._map(file)[offset : offset + length]
            for file, offset, length in zip(files, offsets, lengths, strict=True)
        ]
        accepted = column.accept(ids, slices)
        self.unmap_files({f for f, a, b in zip(files, slices, accepted, strict=True) if a is not b})
        return list(zip(accepted, lengths, strict=True))

    def _array(
        self, i: int, array: ArrayLayout, data: NDArray[np.uint8], size: int
    ) -> NDArray[np.generic]:
        if len(data) != size:
            raise CannotRead(
                missing(self._column.path(int(self._column.file[i])), size - len(data))
            )
        return data.view(array.dtype).reshape(array.shape_of(i))

    def _map(self, file: int) -> NDArray[np.uint8]:
        mapped = self._maps.get(file)
        if mapped is None:
            mapped = self._maps[file] = _open_map(self._column.path(file))
            if len(self._maps) > _MAX_OPEN:
                self._maps.popitem(last=False)
        else:
            self._maps.move_to_end(file)
        return mapped


def _open_map(path: str) -> NDArray[np.uint8]:
    """Map a file. If that fails, return no bytes, so that its samples fail and are named."""
    try:
        with open_regular(path, buffering=0) as f:
            return np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError):
        return PLACEHOLDER[:0]
