"""Parts of large files as slices of memory maps: bytes that nobody copies, and that Python never
touches.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.byte_range import missing
from gpupipe.dataset.index import ArrayLayout, Index, SpanColumn

_MOST_OPEN = 8192
"""Files that stay mapped: mapping one of 1 MB anew costs twice what copying it does. Linux lets a
process have 65,530 maps by default. What is still being read of one that is given up stays in
memory until it was.
"""
_NOTHING = np.zeros(1, np.uint8)
"""Stands for bytes of an image that are not there: no header, so that the sample fails, and is
named.
"""


class Missing(RuntimeError):
    """A file does not hold what the index says."""


class Maps:
    """The samples of one field that are parts of files."""

    def __init__(self, index: Index, name: str) -> None:
        self._index, self._name = index, name
        self._maps: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    def encoded(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """The bytes of image files, uint8 (bytes,) each; a byte in place of what is not there."""
        return [found if len(found) == wanted else _NOTHING for found, wanted in self._slices(ids)]

    def arrays(self, ids: NDArray[np.int64]) -> list[NDArray[np.generic]]:
        """Arrays, of the dtype and the shapes that the index says.

        Raises Missing where one is not there whole.
        """
        array = self._column.array
        assert array is not None
        return [
            self._array(int(i), array, *both)
            for i, both in zip(ids, self._slices(ids), strict=True)
        ]

    def let_go(self, files: set[int]) -> None:
        """Forget the maps of these files; each goes when the last batch that was made of it
        does.
        """
        for file in files & self._maps.keys():
            del self._maps[file]

    @property
    def _column(self) -> SpanColumn:
        column = self._index.columns[self._name]
        assert isinstance(column, SpanColumn)
        return column

    def _slices(self, ids: NDArray[np.int64]) -> list[tuple[NDArray[np.uint8], int]]:
        """What there is of each sample, and how many bytes there should be."""
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
        self, i: int, array: ArrayLayout, found: NDArray[np.uint8], wanted: int
    ) -> NDArray[np.generic]:
        if len(found) != wanted:
            raise Missing(
                missing(self._column.path(int(self._column.file[i])), wanted - len(found))
            )
        return found.view(array.dtype).reshape(array.shape_of(i))

    def _map(self, file: int) -> NDArray[np.uint8]:
        found = self._maps.get(file)
        if found is None:
            found = self._maps[file] = _mapped(self._column.path(file))
            if len(self._maps) > _MOST_OPEN:
                self._maps.popitem(last=False)
        else:
            self._maps.move_to_end(file)
        return found


def _mapped(path: str) -> NDArray[np.uint8]:
    """A file, memory-mapped; nothing where it cannot be, so that its samples fail and are named."""
    try:
        with open(path, "rb", buffering=0) as f:
            return np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError):
        return _NOTHING[:0]
