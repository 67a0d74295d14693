"""The columns of an index: where the bytes of a field are, for each row.

Image files are a FileColumn, and parts of files a SpanColumn. A source whose bytes are elsewhere,
in a database or in a library's own files, defines a Column in its own module.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.reading import Span, read_spans, read_states
from gpupipe.dataset.strings import StringArray
from gpupipe.errors import EngineError, GpupipeError, shown
from gpupipe.runtime.files import is_irregular

Rows = NDArray[np.int64]


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

    def shape_of(self, i: int) -> tuple[int, ...]:
        return (
            self.shape
            if self.shapes is None and self.shape is not None
            else tuple(self.shapes[i].tolist())  # type: ignore[index]  # one of the two is set
        )

    def take(self, rows: Rows) -> ArrayLayout:
        return ArrayLayout(
            self.dtype, self.shape, None if self.shapes is None else self.shapes[rows]
        )


class Column(Protocol):
    """Reads the bytes of one field, by row. The bytes are an image file, or an array's numbers.

    A column is immutable, and can be pickled: the DataLoader engine sends the rows of a batch to a
    worker process. So it opens files and connections in `read`, and keeps none as an attribute.
    Derive from this class: it implements all that is not abstract.

    Example:
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
        """Dtype and shapes if the bytes are arrays; None if they are image files."""
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
        """Return what messages call the bytes of a row, such as FILE or FILE:NAME.

        Args:
            row: The row.
            name: The sample's name in the index.
        """

    @abstractmethod
    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        """Return the arrays that identify the bytes of all rows, for the index's fingerprint.

        They should not depend on where the data set lies, so that it can be moved.

        Args:
            names: The names of the samples, which are part of the fingerprint anyway.
        """

    @abstractmethod
    def take(self, rows: Rows) -> Column:
        """Return the column of the chosen rows, in their order."""

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        """Return the first `head` bytes of a row, its last `tail` bytes, and its size in bytes.

        Raises:
            OSError, ValueError: The row cannot be read.
        """
        (data,) = self.read(np.array([row]))
        return data[:head].tobytes(), data[max(0, len(data) - tail) :].tobytes(), len(data)

    def span(self, row: int) -> Span | None:
        """Return the part of a local file that holds the bytes; None if no file holds them."""
        return None

    def get_sizes(self, rows: Rows) -> list[int | None]:
        """Return the size in bytes of each of `rows` without reading them.

        None stands for a row that is missing, or whose size is not known. By default all are None.
        """
        return [None] * len(rows)

    @property
    def can_sample(self) -> bool:
        """Whether a state may read some rows, to recognise the data again.

        False if that may download a row, or if it reads many other rows too.
        """
        return True


@dataclass(frozen=True)
class FileColumn(Column):
    """A field with one image file per sample: row i is the file `root`/paths[i]."""

    root: str
    paths: StringArray

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        return read_spans([self.span(row) for row in rows.tolist()])

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        return self.span(row).read_ends(head, tail)

    def location(self, row: int, name: str) -> str:
        return self.span(row).path

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return [] if self.paths is names else self.paths.fingerprint_parts

    def take(self, rows: Rows) -> FileColumn:
        return FileColumn(self.root, self.paths.take(rows))

    def span(self, row: int) -> Span:
        return Span(os.path.join(self.root, self.paths[row]))

    def get_sizes(self, rows: Rows) -> list[int | None]:
        states = read_states([self.span(row).path for row in rows.tolist()])
        return [None if state is None else state[0] for state in states]

    def find_irregular(self, rows: Rows) -> list[int]:
        """Return the positions in `rows` of FIFOs, sockets and devices; links are followed."""
        return [n for n, row in enumerate(rows.tolist()) if is_irregular(self.span(row).path)]

    def encoded_paths(self, rows: Rows) -> NDArray[np.uint8]:
        """Return absolute paths in the form that DALI's io.file.read takes.

        All paths are in one array: DALI inspects every array that it gets in Python.

        Returns:
            uint8 (len(rows), longest), padded with NUL, which ends a path for the system.
        """
        return self.paths.pad(rows, os.fsencode(self.root) + b"/")


@dataclass(frozen=True)
class SpanColumn(Column):
    """A field whose samples are byte ranges of files.

    Row i is the `length[i]` bytes from `offset[i]` on in the file `root`/files[file[i]].

    Attributes:
        root: The folder that `files` are relative to.
        files: The files.
        file: The number of each row's file, int32 (N,).
        offset: The first byte of each row, int64 (N,).
        length: The number of bytes of each row, int64 (N,).
        array: Dtype and shapes if the bytes are arrays; None if they are image files.
    """

    root: str
    files: StringArray
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    array: ArrayLayout | None = None

    def __len__(self) -> int:
        return len(self.file)

    def get_sizes(self, rows: Rows) -> list[int | None]:
        return list(self.length[rows].tolist())

    def accept(self, rows: Rows, contents: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """Return the bytes of rows that were read without `read`, such as slices of memory maps.

        A column that checks them replaces those that are damaged; by no bytes if it cannot.

        Args:
            rows: The rows.
            contents: Their bytes, as far as the files have them.
        """
        return contents

    def path(self, number: int) -> str:
        """Return the path of `files[number]`, with the root."""
        return os.path.join(self.root, self.files[number])

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        return read_spans([self.span(row) for row in rows.tolist()])

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        return self.span(row).read_ends(head, tail)

    def location(self, row: int, name: str) -> str:
        """Return FILE:NAME, or FILE if the sample is named after its file."""
        path = self.path(int(self.file[row]))
        return path if f"/{path}".endswith(f"/{name}") else f"{path}:{name}"

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        shapes = [] if self.array is None or self.array.shapes is None else [self.array.shapes]
        return [*self.files.fingerprint_parts, self.file, self.length, *shapes]

    def take(self, rows: Rows) -> SpanColumn:
        numbers, file = np.unique(self.file[rows].astype(np.int64), return_inverse=True)
        return SpanColumn(
            self.root,
            self.files.take(numbers),
            file.astype(np.int32),
            self.offset[rows],
            self.length[rows],
            None if self.array is None else self.array.take(rows),
        )

    def span(self, row: int) -> Span:
        return Span(self.path(int(self.file[row])), int(self.offset[row]), int(self.length[row]))


def read_rows(column: Column, rows: Rows) -> list[NDArray[np.uint8]]:
    """Return column.read(rows).

    Raises:
        OSError, ValueError: A row cannot be read.
        EngineError: `read` raised another exception, which the contract does not allow.
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
    """Return the bytes of a row, in memory that can be written to.

    Args:
        column: The column.
        row: The row.
        data: Its bytes, if they have been read.

    Raises:
        OSError, ValueError: The row cannot be read, or has no bytes.
        EngineError: The column failed.
    """
    if data is None:
        (data,) = read_rows(column, np.array([row]))
    if column.array is None and not len(data):
        raise ValueError("the file is empty")
    return data if data.flags.writeable else data.copy()  # torch warns of memory that is read-only


def as_array(data: NDArray[np.uint8], layout: ArrayLayout, row: int) -> NDArray[Any]:
    """Return the bytes of a row as an array of the dtype and shape that the layout states.

    Raises:
        ValueError: There are more bytes, or fewer.
    """
    shape = layout.shape_of(row)
    size = prod(shape) * np.dtype(layout.dtype).itemsize
    if len(data) != size:
        raise ValueError(
            f"{len(data):,} bytes, but {layout.dtype} of shape {shown(list(shape))} has {size:,}"
        )
    return data.view(layout.dtype).reshape(shape)
