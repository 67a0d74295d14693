"""Reads samples that are parts of large files as slices of memory maps.

Slicing copies no bytes, and Python never touches them.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.byte_range import missing
from gpupipe.dataset.index import ArrayLayout, Index, SpanColumn
from gpupipe.engines.base import LoadSpec

_MOST_OPEN = 8192
"""How many files stay mapped. Mapping a file of 1 MB again costs twice as much as copying it. Linux
lets a process have 65,530 maps by default. A map that is dropped here stays in memory until the
last slice of it is gone.
"""
_PLACEHOLDER = np.zeros(1, np.uint8)
"""Replaces the bytes of an image that is not complete. It has no image header, so that the sample
fails and is reported by name.
"""


class Missing(RuntimeError):
    """A file is shorter than the index says."""


class Maps:
    """The memory maps of one field whose samples are parts of files.

    Args:
        index: The index of the samples.
        name: The field, whose column is a SpanColumn.
    """

    def __init__(self, index: Index, name: str) -> None:
        self._index, self._name = index, name
        self._maps: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    def encoded(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return the bytes of image files, uint8 (bytes,) each.

        An incomplete file becomes a single zero byte, so that its sample fails in the decoder.
        """
        return [data if len(data) == size else _PLACEHOLDER for data, size in self._slices(ids)]

    def arrays(self, ids: NDArray[np.int64]) -> list[NDArray[np.generic]]:
        """Return arrays of the dtype and the shapes that the index states.

        Raises:
            Missing: An array is not complete.
        """
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

    @property
    def _column(self) -> SpanColumn:
        column = self._index.columns[self._name]
        assert isinstance(column, SpanColumn)
        return column

    def _slices(self, ids: NDArray[np.int64]) -> list[tuple[NDArray[np.uint8], int]]:
        """The available bytes of each sample, and the size that the index states."""
        column = self._column
        rows = zip(
            column.file[ids].tolist(),
            column.offset[ids].tolist(),
            column.length[ids].tolist(),
            strict=True,
        )
        return [
            (self._map(file)[offset : offset + length], length) for file, offset, length in rows
        ]

    def _array(
        self, i: int, array: ArrayLayout, data: NDArray[np.uint8], size: int
    ) -> NDArray[np.generic]:
        if len(data) != size:
            raise Missing(missing(self._column.path(int(self._column.file[i])), size - len(data)))
        return data.view(array.dtype).reshape(array.shape_of(i))

    def _map(self, file: int) -> NDArray[np.uint8]:
        mapped = self._maps.get(file)
        if mapped is None:
            mapped = self._maps[file] = _open_map(self._column.path(file))
            if len(self._maps) > _MOST_OPEN:
                self._maps.popitem(last=False)
        else:
            self._maps.move_to_end(file)
        return mapped


def map_fields(job: LoadSpec) -> dict[str, Maps]:
    """Return the memory maps of the fields of a job that are parts of files, by field name."""
    return {
        name: Maps(job.index, name)
        for name in job.pipeline.fields
        if isinstance(job.index.columns.get(name), SpanColumn)
    }


def _open_map(path: str) -> NDArray[np.uint8]:
    """Map a file. If that fails, return no bytes, so that its samples fail and are named."""
    try:
        with open(path, "rb", buffering=0) as f:
            return np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError):
        return _PLACEHOLDER[:0]
