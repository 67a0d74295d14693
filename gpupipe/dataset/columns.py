"""The contract of an index's columns: a Column reads the bytes of a field, by row.

The columns of local files are in file_columns.py. A source whose bytes are elsewhere, in a database
or in a library's own files, defines a Column in its own module.
"""

import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.reading import FileSet, Span
from gpupipe.errors import EngineError, GpupipeError, shown

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class StringArray:
    """N strings in one array, stored as in Arrow.

    String i is data[offsets[i] : offsets[i + 1]], as the file system encodes it.

    Attributes:
        data: The bytes of all strings, concatenated, uint8 (bytes,).
        offsets: Where each string begins, and where the last one ends, int64 (N + 1,).
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> "StringArray":
        encoded = [os.fsencode(string) for string in strings]
        return cls.from_ends(
            np.frombuffer(b"".join(encoded), np.uint8),
            np.cumsum([len(e) for e in encoded], dtype=np.int64),
        )

    @classmethod
    def from_ends(cls, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> "StringArray":
        """Split `data` into N strings. `ends` has the offset at which each ends, int64 (N,)."""
        return cls(data, np.concatenate([np.zeros(1, np.int64), ends]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> str:
        return os.fsdecode(self.data[self.offsets[i] : self.offsets[i + 1]].tobytes())

    def pad(self, rows: NDArray[np.int64], prefix: bytes) -> NDArray[np.uint8]:
        """Return the strings of `rows`, each after `prefix`, padded with NUL to one length.

        Returns:
            uint8 (len(rows), len(prefix) + length of the longest string).
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max())
        content = self.data[np.minimum(starts[:, None] + columns, len(self.data) - 1)]
        padded = np.zeros((len(rows), len(prefix) + len(columns)), np.uint8)
        padded[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        padded[:, len(prefix) :] = np.where(columns < lengths[:, None], content, 0)
        return padded

    @property
    def fingerprint_parts(self) -> list[NDArray[Any]]:
        """The arrays that a fingerprint hashes: the bytes, and where each string ends."""
        return [self.data, self.offsets[1:]]

    def take(self, rows: NDArray[np.int64]) -> "StringArray":
        return StringArray.from_strings(self[int(i)] for i in rows)


def join_strings(every: Sequence[StringArray]) -> StringArray:
    """Concatenate several StringArrays."""
    starts = np.cumsum([0, *(len(strings.data) for strings in every)])
    ends = [strings.offsets[1:] + start for strings, start in zip(every, starts, strict=False)]
    return StringArray.from_ends(np.concatenate([s.data for s in every]), np.concatenate(ends))


@dataclass(frozen=True)
class ArrayLayout:
    """The dtype and shapes of a field of arrays, stored in C order and native byte order.

    Attributes:
        dtype: NumPy's name of the dtype, such as "float32".
        shape: The shape of every sample; None if samples differ.
        shapes: The shape of each sample, int64 (N, axes), if samples differ; else None.
    """

    dtype: str
    shape: tuple[int, ...] | None
    shapes: NDArray[np.int64] | None = None

    @classmethod
    def of_shapes(cls, dtype: str, shapes: NDArray[np.int64]) -> "ArrayLayout":
        """Return the layout of N samples whose shapes are `shapes`, int64 (N, axes); N > 0."""
        if (shapes == shapes[0]).all():
            return cls(dtype, tuple(shapes[0].tolist()))
        return cls(dtype, None, shapes)

    def shape_of(self, i: int) -> tuple[int, ...]:
        if self.shape is not None:
            return self.shape
        assert self.shapes is not None
        return tuple(self.shapes[i].tolist())

    def take(self, rows: Rows) -> "ArrayLayout":
        return self if self.shapes is None else replace(self, shapes=self.shapes[rows])


class Column(Protocol):
    """Reads the bytes of one field, by row. The bytes are an image file, or an array's numbers.

    A column is immutable, and can be pickled: the DataLoader engine sends the rows of a batch to a
    worker process. So it opens files and connections in `read`, and keeps none as an attribute.
    Derive from this class: it implements every method that is not abstract.

    Examples:
        >>> @dataclass(frozen=True)
        ... class BlobColumn(Column):
        ...     path: str
        ...     keys: NDArray[np.int64]
        ...
        ...     def __len__(self):
        ...         return len(self.keys)
        ...
        ...     def read(self, rows):
        ...         blobs = query(self.path, self.keys[rows])
        ...         return [np.frombuffer(blob, np.uint8) for blob in blobs]
        ...
        ...     def location(self, row, name):
        ...         return f"{self.path}:{self.keys[row]}"
        ...
        ...     def fingerprint_parts(self, names):
        ...         return [self.keys]
        ...
        ...     def take(self, rows):
        ...         return BlobColumn(self.path, self.keys[rows])
    """

    @property
    def array(self) -> ArrayLayout | None:
        """The dtype and the shapes of the arrays; None if the bytes are image files."""
        return None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        """Return the bytes of each of `rows`, uint8 (bytes,).

        Several threads and processes may call this at once.

        Raises:
            OSError, ValueError: A row cannot be read. The message says why. The engine then reads
                each row alone, to find the sample at fault.
        """

    @abstractmethod
    def location(self, row: int, name: str) -> str:
        """Return where the bytes of a row are, for messages: FILE or FILE:NAME.

        Args:
            row: The row.
            name: The sample's name in the index.
        """

    @abstractmethod
    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        """Return the arrays that identify the bytes of all rows, for the index's fingerprint.

        The arrays should not depend on the folder of the data set, so that it can be moved.

        Args:
            names: The names of the samples. The index hashes them itself.
        """

    @abstractmethod
    def take(self, rows: Rows) -> "Column":
        """Return a column that has only the given rows, in the order of `rows`."""

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        """Return the first `head` bytes of a row, its last `tail` bytes, and its size in bytes.

        Raises:
            OSError, ValueError: The row cannot be read.
        """
        (data,) = self.read(np.array([row]))
        return data[:head].tobytes(), data[max(0, len(data) - tail) :].tobytes(), len(data)

    def span(self, row: int) -> Span | None:
        """Return the part of a local file that holds a row's bytes; None if no file holds them."""
        return None

    def open_files(self, rows: Rows) -> FileSet | None:
        """Return `rows` as files that the extension reads and decodes without objects of Python.

        None if the rows are no whole files, as by default, or without the extension.
        """
        return None

    def get_sizes(self, rows: Rows) -> list[int | None]:
        """Return the size in bytes of each of `rows` without reading them.

        The size is None if the row is missing or its size is unknown. By default all are None.
        """
        return [None] * len(rows)

    @property
    def can_sample(self) -> bool:
        """Whether a few rows can be read cheaply, to check at a resume that the data is the same.

        False if reading a row may download it, or reads many other rows too.
        """
        return True


def read_rows(column: Column, rows: Rows) -> list[NDArray[np.uint8]]:
    """Return column.read(rows); turn exceptions that no column should raise into an EngineError.

    Raises:
        OSError, ValueError: A row cannot be read.
        EngineError: `column.read` raised an exception that the contract of Column forbids.
    """
    try:
        return column.read(rows)
    except (OSError, ValueError, MemoryError, GpupipeError):
        raise
    except Exception as e:  # whatever a plugin's code raises
        raise EngineError(
            f"{type(column).__name__}.read() raised {type(e).__name__}: {e}. It should raise "
            "OSError or ValueError for a row that cannot be read"
        ) from e


def read_bytes(
    column: Column, row: int, data: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Return the bytes of a row as a writable array, uint8 (bytes,).

    Args:
        column: The column.
        row: The row.
        data: The bytes of the row, if the caller has read them already.

    Raises:
        OSError, ValueError: The row cannot be read, or is an empty image file.
        EngineError: `column.read` raised an exception that the contract of Column forbids.
    """
    if data is None:
        (data,) = read_rows(column, np.array([row]))
    if column.array is None and not len(data):
        raise ValueError("the file is empty")
    return data if data.flags.writeable else data.copy()  # torch warns of memory that is read-only


def as_array(data: NDArray[np.uint8], layout: ArrayLayout, row: int) -> NDArray[Any]:
    """Return the bytes of a row as an array of the dtype and shape that the layout states.

    Raises:
        ValueError: `data` has more or fewer bytes than this dtype and shape need.
    """
    shape = layout.shape_of(row)
    size = prod(shape) * np.dtype(layout.dtype).itemsize
    if len(data) != size:
        raise ValueError(
            f"{len(data):,} bytes, but {layout.dtype} of shape {shown(list(shape))} has {size:,}"
        )
    return data.view(layout.dtype).reshape(shape)
