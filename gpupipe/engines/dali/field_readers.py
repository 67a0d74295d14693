"""Reads the fields that DALI does not read itself: all except those with one image file per sample.

If samples are parts of large files, MmapReader returns slices of memory maps, without a copy. For
all other columns, FieldReader calls `Column.read`.
"""

import mmap
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column, as_array, read_rows
from gpupipe.dataset.file_columns import FileColumn, SpanColumn
from gpupipe.dataset.reading import missing
from gpupipe.engines.base import Job
from gpupipe.errors import describe_error
from gpupipe.runtime.failures import machine_errors
from gpupipe.runtime.files import open_regular

PLACEHOLDER = np.zeros(1, np.uint8)
"""Replaces the bytes of an image that cannot be read. The placeholder has no image header, so the
sample fails in the decoder and is reported by name.
"""
_MAX_OPEN = 8192
"""How many files stay mapped. Mapping a file of 1 MB again costs twice as much as copying it. Linux
lets a process have 65,530 maps by default. A map that is dropped here stays in memory until the
last slice of it is gone.
"""


class CannotReadError(RuntimeError):
    """A sample's bytes cannot be read, or are fewer than the index says."""


class FieldReader:
    """Reads the samples of one field into memory that DALI uses without a copy.

    This class serves any column: it calls `Column.read`.
    """

    def __init__(self, column: Column) -> None:
        self._column = column

    def read_encoded(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return the bytes of the image files of the rows `ids`: one array uint8 (bytes,) for each.

        A file that cannot be read is replaced by PLACEHOLDER, which is no image, so that the sample
        fails in the decoder.

        Raises:
            EngineError: The machine or a plugin's code failed.
        """
        with machine_errors():
            try:
                return read_rows(self._column, ids)
            except (OSError, ValueError):
                if len(ids) == 1:
                    return [PLACEHOLDER]
                return [self.read_encoded(ids[n : n + 1])[0] for n in range(len(ids))]

    def read_arrays(self, ids: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the array of each row in `ids`, with the dtype and shape that the index states.

        Raises:
            CannotReadError: An array cannot be read.
            EngineError: The machine or a plugin's code failed.
        """
        layout = self._column.array
        assert layout is not None
        with machine_errors():
            try:
                rows = zip(read_rows(self._column, ids), ids.tolist(), strict=True)
                return [as_array(data, layout, row) for data, row in rows]
            except (OSError, ValueError) as e:
                raise CannotReadError(describe_error(e)) from e

    def unmap_files(self, files: set[int]) -> None:
        """Drop the maps of files, by position in SpanColumn.files. This class has no maps."""


class MmapReader(FieldReader):
    """Reads samples that are parts of large files, as slices of memory maps, without a copy."""

    def __init__(self, column: SpanColumn) -> None:
        super().__init__(column)
        self._spans = column
        self._maps: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    def read_encoded(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [data if len(data) == size else PLACEHOLDER for data, size in self._slices(ids)]

    def read_arrays(self, ids: NDArray[np.int64]) -> list[NDArray[Any]]:
        array, arrays = self._spans.array, []
        assert array is not None
        for i, (data, size) in zip(ids.tolist(), self._slices(ids), strict=True):
            if len(data) != size:
                path = self._spans.path(int(self._spans.file[i]))
                raise CannotReadError(missing(path, size - len(data)))
            arrays.append(data.view(array.dtype).reshape(array.shape_of(i)))
        return arrays

    def unmap_files(self, files: set[int]) -> None:
        """Drop the memory maps of some files.

        The system unmaps a file only when the last batch with slices of the file is gone.

        Args:
            files: Positions in SpanColumn.files.
        """
        for file in files & self._maps.keys():
            del self._maps[file]

    def _slices(self, ids: NDArray[np.int64]) -> list[tuple[NDArray[np.uint8], int]]:
        """Return, for each row in `ids`, the sample's bytes, and its size according to the index.

        If the file ends too early or is damaged, there may be fewer bytes than that.
        """
        column = self._spans
        files, offsets = column.file[ids].tolist(), column.offset[ids].tolist()
        lengths = column.length[ids].tolist()
        slices = [
            self._map(file)[offset : offset + length]
            for file, offset, length in zip(files, offsets, lengths, strict=True)
        ]
        accepted = column.accept(ids, slices)
        self.unmap_files({f for f, a, b in zip(files, slices, accepted, strict=True) if a is not b})
        return list(zip(accepted, lengths, strict=True))

    def _map(self, file: int) -> NDArray[np.uint8]:
        mapped = self._maps.get(file)
        if mapped is None:
            mapped = self._maps[file] = _open_map(self._spans.path(file))
            if len(self._maps) > _MAX_OPEN:
                self._maps.popitem(last=False)
        else:
            self._maps.move_to_end(file)
        return mapped


def _open_map(path: str) -> NDArray[np.uint8]:
    """Map a file into memory, and return its bytes.

    If mapping fails, return an empty array. Then each sample in the file fails as truncated, with
    an error that names the sample.
    """
    try:
        with open_regular(path, buffering=0) as f:
            return np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError):
        return PLACEHOLDER[:0]


def open_fields(job: Job) -> dict[str, FieldReader]:
    """Return a reader for each field that DALI does not read itself, by field name.

    DALI itself reads only fields with one image file per sample.
    """
    columns = {name: job.index.columns.get(name) for name in job.pipeline.fields}
    return {
        name: MmapReader(column) if isinstance(column, SpanColumn) else FieldReader(column)
        for name, column in columns.items()
        if column is not None and not isinstance(column, FileColumn)
    }
