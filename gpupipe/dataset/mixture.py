"""A data set that is mixed of several: how many samples an epoch has of each, and their columns.

`Mixture` computes the numbers, and `interleave` the order. `join_columns` makes one column of the
rows of several, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import ArrayLayout, Column, FileColumn, Rows, SpanColumn
from gpupipe.dataset.index import Index
from gpupipe.dataset.reading import Span
from gpupipe.dataset.strings import StringArray
from gpupipe.errors import DataError, counted

T = TypeVar("T")
Stop = Literal["first", "all", "never"]
_SLACK = 1e-9
"""Products of weights are rounded: 0.3 / 0.1 is 3."""


@runtime_checkable
class Mixing(Protocol):
    """A source that mixes others."""

    def mixture(self, index: Index) -> Mixture | None:
        """The proportions of an epoch."""


@dataclass(frozen=True)
class Mixture:
    """The parts of an index, which follow each other in it, and their proportions in an epoch.

    Attributes:
        names: The names of the parts.
        counts: The number of samples of each part.
        weights: The weight of each part, above 0.
        stop: When an epoch ends: after all samples of the part that is used up first; when all
            parts are used up; or "never", after `loader.epoch_size` samples.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]
    stop: Stop = "first"

    def __str__(self) -> str:
        """Return the proportions as a state has them: a 3, b 1, stop first."""
        parts = zip(self.names, self.weights, strict=True)
        return ", ".join([*(f"{name} {weight:g}" for name, weight in parts), f"stop {self.stop}"])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each part, int64 (parts,)."""
        return np.cumsum([0, *self.counts[:-1]], dtype=np.int64)

    def restrict(self, rows: NDArray[np.int64]) -> Mixture:
        """Return the mixture of chosen rows.

        Args:
            rows: The rows, ascending, int64 (n,).

        Raises:
            DataError: A part has none of them.
        """
        ends = np.searchsorted(rows, np.cumsum(self.counts))
        counts = np.diff(ends, prepend=0).tolist()
        if 0 in counts:
            name = self.names[counts.index(0)]
            raise DataError(f"data.parts.{name}: no sample of it is in loader.subset")
        return replace(self, counts=tuple(counts))

    def count_samples(self, size: int | None) -> NDArray[np.int64]:
        """Return how many samples of each part an epoch has, int64 (parts,).

        Args:
            size: The size of the epoch; None: as `stop` says.

        Raises:
            DataError: A part would have none.
        """
        weights, counts = np.array(self.weights), np.array(self.counts)
        if size is not None:
            found = _divide(size, weights)
        elif self.stop == "first":
            shares = weights * (counts / weights).min()
            found = np.minimum(np.floor(shares + _SLACK).astype(np.int64), counts)
        else:
            shares = weights * (counts / weights).max()
            found = np.maximum(np.ceil(shares - _SLACK).astype(np.int64), counts)
        if not found.all():
            name = self.names[int(np.argmin(found))]
            total = counted(int(found.sum()), "sample")
            raise DataError(
                f"data.parts.{name}.weight: so small that an epoch of {total} has none of it: "
                "make it larger"
            )
        return found


def _divide(size: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divide a number in proportion, with the largest remainders rounded up."""
    shares = size * weights / weights.sum()
    found: NDArray[np.int64] = np.floor(shares + _SLACK).astype(np.int64)
    order = np.argsort(-(shares - found), kind="stable")
    found[order[: size - int(found.sum())]] += 1
    return found


def interleave(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order in which any stretch holds the parts in proportion.

    Each of k parts is within k - 1 samples of its proportion; of two, within a sample.

    Args:
        counts: The number of samples of each part.

    Returns:
        The number of the part at each position, int64 (sum of counts,).
    """
    places = [(2 * np.arange(count) + 1) / (2 * count) for count in counts]
    parts = np.repeat(np.arange(len(places)), [len(place) for place in places])
    order: NDArray[np.int64] = parts[np.argsort(np.concatenate(places), kind="stable")]
    return order


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
        return self._gather(rows, lambda column, own: column.read(own))

    def _gather(self, rows: Rows, get: Callable[[Column, Rows], Sequence[T]]) -> list[T]:
        """Return what `get` returns for the rows of each column, in the order of `rows`."""
        results: dict[int, T] = {}
        for number in np.unique(self.part[rows]).tolist():
            places = np.flatnonzero(self.part[rows] == number)
            own = get(self.columns[number], self.row[rows[places]])
            results.update(zip(places.tolist(), own, strict=True))
        return [results[place] for place in range(len(rows))]

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
        return self._gather(rows, lambda column, own: column.get_sizes(own))

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
