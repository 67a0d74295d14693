"""The columns of local files: whole files, byte ranges of files, and several columns in one.

FileColumn reads whole image files, and SpanColumn reads byte ranges of files. `join_columns`
concatenates several columns.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import ArrayLayout, Column, Rows, StringArray, join_strings
from gpupipe.dataset.reading import FileSet, Span, open_files, read_all, read_spans, read_states
from gpupipe.runtime.files import is_irregular

T = TypeVar("T")


@dataclass(frozen=True)
class FileColumn(Column):
    """A field with one image file per sample: row i is the file `root`/paths[i]."""

    root: str
    paths: StringArray

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        files = self.open_files(rows)
        contents = None if files is None else read_all(files, len(rows))
        return contents or read_spans([self.span(row) for row in rows.tolist()])

    def open_files(self, rows: Rows) -> FileSet | None:
        return open_files(self._folder, self.paths.data, self.paths.offsets, rows)

    @cached_property
    def _folder(self) -> bytes:
        return os.fsencode(os.path.join(self.root, ""))

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        return self.span(row).read_ends(head, tail)

    def location(self, row: int, name: str) -> str:
        return self.span(row).path

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return [] if self.paths is names else self.paths.fingerprint_parts

    def take(self, rows: Rows) -> "FileColumn":
        return FileColumn(self.root, self.paths.take(rows))

    def span(self, row: int) -> Span:
        return Span(os.path.join(self.root, self.paths[row]))

    def get_sizes(self, rows: Rows) -> list[int | None]:
        states = read_states([self.span(row).path for row in rows.tolist()])
        return [None if state is None else state[0] for state in states]

    def find_irregular(self, rows: Rows) -> list[int]:
        """Return the positions in `rows` of rows whose file is a FIFO, a socket or a device."""
        return [n for n, row in enumerate(rows.tolist()) if is_irregular(self.span(row).path)]

    def encoded_paths(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the absolute paths as the array that DALI's io.file.read takes.

        All paths are in one array, because DALI inspects each array in Python, which takes time.

        Returns:
            uint8 (len(rows), length of the longest path), padded with NUL.
        """
        return self.paths.pad(rows, os.fsencode(self.root) + b"/")


@dataclass(frozen=True)
class SpanColumn(Column):
    """A field whose samples are byte ranges of files.

    Row i is the `length[i]` bytes from `offset[i]` on in the file `root`/files[file[i]].

    Attributes:
        root: The folder that `files` are relative to.
        files: The paths of the files.
        file: The position of each row's file in `files`, int32 (N,).
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
        """Check the bytes of rows that the caller read itself, such as slices of a memory map.

        This class returns `contents` unchanged. A subclass with checksums replaces the bytes of
        damaged rows, by an empty array if it cannot get the right bytes.

        Args:
            rows: The rows.
            contents: The bytes of each row; fewer than `length` if the file ends too early.
        """
        return contents

    def path(self, number: int) -> str:
        """Return the path of `files[number]`, joined to `root`."""
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

    def take(self, rows: Rows) -> Self:
        numbers, file = np.unique(self.file[rows].astype(np.int64), return_inverse=True)
        return replace(
            self,
            files=self.files.take(numbers),
            file=file.astype(np.int32),
            offset=self.offset[rows],
            length=self.length[rows],
            array=None if self.array is None else self.array.take(rows),
        )

    def span(self, row: int) -> Span:
        return Span(self.path(int(self.file[row])), int(self.offset[row]), int(self.length[row]))


@dataclass(frozen=True)
class JoinedColumn(Column):
    """Concatenates columns of different classes.

    Row i is row `row[i]` of `columns[part[i]]`.

    Attributes:
        columns: The columns.
        part: The position of each row's column in `columns`, int32 (N,).
        row: The position of each row in its column, int64 (N,).
        array: Dtype and shapes if the bytes are arrays; None if they are image files.
    """

    columns: tuple[Column, ...]
    part: NDArray[np.int32]
    row: NDArray[np.int64]
    array: ArrayLayout | None = None

    def __len__(self) -> int:
        return len(self.row)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        return self._gather(rows, lambda column, own: column.read(own))

    def get_sizes(self, rows: Rows) -> list[int | None]:
        return self._gather(rows, lambda column, own: column.get_sizes(own))

    def _gather(self, rows: Rows, get: Callable[[Column, Rows], Sequence[T]]) -> list[T]:
        """Call `get(column, rows of that column)` for each column; return results as in `rows`."""
        results: dict[int, T] = {}
        for number in np.unique(self.part[rows]).tolist():
            positions = np.flatnonzero(self.part[rows] == number)
            own = get(self.columns[number], self.row[rows[positions]])
            results.update(zip(positions.tolist(), own, strict=True))
        return [results[position] for position in range(len(rows))]

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        return self.columns[int(self.part[row])].read_ends(int(self.row[row]), head, tail)

    def location(self, row: int, name: str) -> str:
        return self.columns[int(self.part[row])].location(int(self.row[row]), name)

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        inner = [part for column in self.columns for part in column.fingerprint_parts(names)]
        return [*inner, self.part, self.row]

    def take(self, rows: Rows) -> "JoinedColumn":
        array = None if self.array is None else self.array.take(rows)
        return replace(self, part=self.part[rows], row=self.row[rows], array=array)

    @property
    def can_sample(self) -> bool:
        return all(column.can_sample for column in self.columns)

    def span(self, row: int) -> Span | None:
        return self.columns[int(self.part[row])].span(int(self.row[row]))


def join_columns(columns: Sequence[Column]) -> Column:
    """Concatenate columns.

    Returns:
        A FileColumn if all columns are FileColumns, a SpanColumn if all columns are SpanColumns,
        else a JoinedColumn, which engines read more slowly.

    Raises:
        ValueError: Arrays differ in dtype or number of axes, or only some columns hold arrays.
    """
    counts = [len(column) for column in columns]
    layout = join_layouts([column.array for column in columns], counts)
    files = [column for column in columns if isinstance(column, FileColumn)]
    spans = [column for column in columns if isinstance(column, SpanColumn)]
    if len(files) == len(columns):
        return _join_files(files)
    if len(spans) == len(columns):
        return _join_spans(spans, layout)
    part = np.repeat(np.arange(len(columns), dtype=np.int32), counts)
    row = np.concatenate([np.arange(count) for count in counts])
    return JoinedColumn(tuple(columns), part, row, layout)


def _join_files(columns: Sequence[FileColumn]) -> FileColumn:
    roots = [str(Path(column.root).absolute()) for column in columns]
    if len(set(roots)) == 1:
        return FileColumn(roots[0], join_strings([column.paths for column in columns]))
    paths = (
        os.path.join(root, column.paths[n]).lstrip("/")
        for root, column in zip(roots, columns, strict=True)
        for n in range(len(column))
    )
    return FileColumn("/", StringArray.from_strings(paths))


def _join_spans(columns: Sequence[SpanColumn], layout: ArrayLayout | None) -> SpanColumn:
    starts = np.cumsum([0, *(len(column.files) for column in columns)])
    paths = StringArray.from_strings(
        str(Path(column.path(n)).absolute()) for column in columns for n in range(len(column.files))
    )
    file = [column.file + start for column, start in zip(columns, starts, strict=False)]
    offset = np.concatenate([column.offset for column in columns])
    length = np.concatenate([column.length for column in columns])
    return SpanColumn("", paths, np.concatenate(file).astype(np.int32), offset, length, layout)


def join_layouts(every: Sequence[ArrayLayout | None], counts: Sequence[int]) -> ArrayLayout | None:
    """Return the layout of concatenated columns; None if they hold image files.

    Args:
        every: The layout of each column; None if it holds image files.
        counts: The number of rows of each column.

    Raises:
        ValueError: Arrays differ in dtype or number of axes, or only some columns hold arrays.
    """
    layouts = [layout for layout in every if layout is not None]
    if not layouts:
        return None
    first = layouts[0]
    axes = {len(layout.shape_of(0)) for layout in layouts}
    if len(layouts) < len(every) or len(axes) > 1 or {w.dtype for w in layouts} != {first.dtype}:
        raise ValueError("arrays of one dtype and number of axes, in all parts or in none")
    if first.shape is not None and all(layout.shape == first.shape for layout in layouts):
        return first
    shapes = [
        np.tile(np.array(layout.shape, np.int64), (count, 1))
        if layout.shapes is None
        else layout.shapes
        for layout, count in zip(layouts, counts, strict=True)
    ]
    return ArrayLayout(first.dtype, None, np.concatenate(shapes))
