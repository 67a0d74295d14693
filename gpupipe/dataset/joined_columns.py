"""One column of the rows of several columns, one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.byte_range import Span
from gpupipe.dataset.columns import ArrayLayout, Column, FileColumn, Rows, SpanColumn
from gpupipe.dataset.strings import StringArray


@dataclass(frozen=True)
class JoinedColumn(Column):
    """The rows of several columns that are not of one kind.

    Attributes:
        columns: The columns.
        part: The number of each row's column, int32 (N,).
        row: The number of each row in its column, int64 (N,).
        layout: Dtype and shapes if the bytes are arrays.
    """

    columns: tuple[Column, ...]
    part: NDArray[np.int32]
    row: NDArray[np.int64]
    layout: ArrayLayout | None

    @property
    def array(self) -> ArrayLayout | None:
        return self.layout

    def __len__(self) -> int:
        return len(self.row)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        found: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(rows)
        for number in np.unique(self.part[rows]).tolist():
            places = np.flatnonzero(self.part[rows] == number)
            contents = self.columns[number].read(self.row[rows[places]])
            for place, content in zip(places.tolist(), contents, strict=True):
                found[place] = content
        return found

    def read_ends(self, row: int, head: int, tail: int) -> tuple[bytes, bytes, int]:
        return self.columns[int(self.part[row])].read_ends(int(self.row[row]), head, tail)

    def location(self, row: int, name: str) -> str:
        return self.columns[int(self.part[row])].location(int(self.row[row]), name)

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        inner = [part for column in self.columns for part in column.fingerprint_parts(names)]
        return [*inner, self.part, self.row]

    def take(self, rows: Rows) -> JoinedColumn:
        layout = None if self.layout is None else self.layout.take(rows)
        return JoinedColumn(self.columns, self.part[rows], self.row[rows], layout)

    def get_sizes(self, rows: Rows) -> list[int | None]:
        sizes: list[int | None] = [None] * len(rows)
        for number in np.unique(self.part[rows]).tolist():
            places = np.flatnonzero(self.part[rows] == number)
            own = self.columns[number].get_sizes(self.row[rows[places]])
            for place, size in zip(places.tolist(), own, strict=True):
                sizes[place] = size
        return sizes

    @property
    def can_sample(self) -> bool:
        return all(column.can_sample for column in self.columns)

    def span(self, row: int) -> Span | None:
        return self.columns[int(self.part[row])].span(int(self.row[row]))


def join_columns(columns: Sequence[Column]) -> Column:
    """Return a column of all rows; of files or spans if all columns are, which engines read best.

    Raises:
        ValueError: Arrays differ in dtype or in their number of axes.
    """
    layout = _join_layouts(columns)
    files = [column for column in columns if isinstance(column, FileColumn)]
    spans = [column for column in columns if isinstance(column, SpanColumn)]
    if len(files) == len(columns):
        return _join_files(files)
    if len(spans) == len(columns):
        return _join_spans(spans, layout)
    counts = [len(column) for column in columns]
    part = np.repeat(np.arange(len(columns), dtype=np.int32), counts)
    row = np.concatenate([np.arange(count) for count in counts])
    return JoinedColumn(tuple(columns), part, row, layout)


def join_strings(every: Sequence[StringArray]) -> StringArray:
    """Return the strings of several arrays in one."""
    starts = np.cumsum([0, *(len(strings.data) for strings in every)])
    ends = [strings.offsets[1:] + start for strings, start in zip(every, starts, strict=False)]
    return StringArray.from_ends(np.concatenate([s.data for s in every]), np.concatenate(ends))


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
    counts = [len(column.files) for column in columns]
    starts = np.cumsum([0, *counts])
    paths = (
        str(Path(column.path(n)).absolute())
        for column, count in zip(columns, counts, strict=True)
        for n in range(count)
    )
    file = [column.file + start for column, start in zip(columns, starts, strict=False)]
    offset, length = (
        np.concatenate([getattr(column, part) for column in columns])
        for part in ("offset", "length")
    )
    joined = StringArray.from_strings(paths)
    return SpanColumn("", joined, np.concatenate(file).astype(np.int32), offset, length, layout)


def _join_layouts(columns: Sequence[Column]) -> ArrayLayout | None:
    layouts = [column.array for column in columns if column.array is not None]
    if not layouts:
        return None
    first = layouts[0]
    axes = {len(layout.shape_of(0)) for layout in layouts}
    if len(layouts) < len(columns) or len(axes) > 1 or {w.dtype for w in layouts} != {first.dtype}:
        raise ValueError("arrays of one dtype and number of axes, in all parts or in none")
    if first.shape is not None and all(layout.shape == first.shape for layout in layouts):
        return first
    shapes = [
        np.tile(np.array(layout.shape, np.int64), (len(column), 1))
        if layout.shapes is None
        else layout.shapes
        for layout, column in zip(layouts, columns, strict=True)
    ]
    return ArrayLayout(first.dtype, None, np.concatenate(shapes))
