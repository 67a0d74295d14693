"""Reads the fields that DALI does not read itself: all but image files of their own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column, as_array, read_rows
from gpupipe.errors import describe_error
from gpupipe.runtime.machine_failures import machine_errors

PLACEHOLDER = np.zeros(1, np.uint8)
"""Replaces the bytes of an image that cannot be read. It has no image header, so that the sample
fails and is reported by name.
"""


class CannotRead(RuntimeError):
    """A sample's bytes cannot be read, or are fewer than the index says."""


class FieldReader(Protocol):
    """Reads the samples of one field into memory that DALI uses without a copy."""

    def read_encoded(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return the bytes of image files, uint8 (bytes,) each.

        A file that cannot be read becomes PLACEHOLDER, so that its sample fails in the decoder.

        Raises:
            EngineError: The machine or a plugin's code failed.
        """

    def read_arrays(self, ids: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return arrays of the dtype and the shapes that the index states.

        Raises:
            CannotRead: An array cannot be read.
            EngineError: The machine or a plugin's code failed.
        """

    def unmap_files(self, files: set[int]) -> None:
        """Unmap these files, which are numbered by their positions in SpanColumn.files."""


class ColumnReader:
    """The FieldReader of any column: it calls `read`."""

    def __init__(self, column: Column) -> None:
        self._column = column

    def read_encoded(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        with machine_errors():
            try:
                return read_rows(self._column, ids)
            except (OSError, ValueError):
                return [self._read_one(ids[n : n + 1]) for n in range(len(ids))]

    def _read_one(self, row: NDArray[np.int64]) -> NDArray[np.uint8]:
        try:
            return read_rows(self._column, row)[0]
        except (OSError, ValueError):
            return PLACEHOLDER

    def read_arrays(self, ids: NDArray[np.int64]) -> list[NDArray[Any]]:
        layout = self._column.array
        assert layout is not None
        with machine_errors():
            try:
                rows = zip(read_rows(self._column, ids), ids.tolist(), strict=True)
                return [as_array(data, layout, row) for data, row in rows]
            except (OSError, ValueError) as e:
                raise CannotRead(describe_error(e)) from e

    def unmap_files(self, files: set[int]) -> None:
        """Do nothing: the column maps no files."""
