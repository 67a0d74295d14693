"""Builds the index of the samples in HDF5 files or Zarr stores, from what their readers found."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import labels
from gpupipe.dataset.chunk_column import ABSENT, ChunkColumn, ChunkTable
from gpupipe.dataset.columns import ArrayLayout, Column, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index import Index, build
from gpupipe.errors import DataError, NoSamplesError, counted, shown
from gpupipe.formats.chunk_grid import ChunkGrid
from gpupipe.formats.stored_arrays import StoreContents, StoredRows, join_rows

IsImage = Callable[[NDArray[np.uint8]], bool]
_PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class Stores:
    """The stores of a data set, in the order of the index, and what they hold.

    Attributes:
        paths: The HDF5 files, or the folders of the Zarr stores.
        contents: What each of them holds.
    """

    paths: Sequence[Path]
    contents: Sequence[StoreContents]

    @property
    def root(self) -> str:
        return os.path.commonpath([path.parent for path in self.paths])

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.array([contents.count for contents in self.contents], np.int64)

    @property
    def store(self) -> NDArray[np.int32]:
        """The position of each sample's store in `paths`, int32 (N,)."""
        return np.repeat(np.arange(len(self.paths), dtype=np.int32), self.counts)

    def make_relative(self, paths: Sequence[str | Path]) -> StringArray:
        start = os.path.join(self.root, "")
        return StringArray.from_strings(str(path).removeprefix(start) for path in paths)


def build_index(stores: Stores, fields: dict[str, str], max_bytes: int, is_image: IsImage) -> Index:
    """Build the index of all samples.

    Args:
        stores: The stores.
        fields: The path of each field's array, by the field's name.
        max_bytes: The bytes of decoded chunks that a process keeps.
        is_image: A function from the bytes of a sample to whether they are an image file.

    Raises:
        NoSamplesError: There is no sample.
        DataError: The stores do not fit each other.
    """
    total = int(stores.counts.sum())
    if not total:
        raise NoSamplesError(
            f"{stores.paths[0]}: no sample in {counted(len(stores.paths), 'file')}: see data.fields"
        )
    columns, pairs = dict[str, Column](), dict[str, bool]()
    for name in fields:
        columns[name], pairs[name] = _build_column(stores, name, max_bytes, is_image)
    main = next(iter(fields.values()))
    names = [
        name
        for contents in stores.contents
        for name in (contents.names or [f"{main} row {n}" for n in range(contents.count)])
    ]
    store = stores.store.tolist()
    numbers, classes = labels.number_classes(
        _join_labels(stores), total, lambda i: f"{stores.paths[store[i]]}:{names[i]}"
    )
    values = {name: _join_values(stores, name) for name in stores.contents[0].values}
    return build(stores.root, names, numbers, classes, {"pairs": pairs}, columns, values)


def _join_labels(stores: Stores) -> NDArray[np.int64] | list[str] | None:
    every: list[list[str] | NDArray[np.int64]] = [
        contents.texts or contents.labels for contents in stores.contents if contents.count
    ]
    return labels.join_labels([part for part in every if len(part)])


def _join_values(stores: Stores, name: str) -> NDArray[Any]:
    arrays = [contents.values[name] for contents in stores.contents]
    for path, array in zip(stores.paths, arrays, strict=True):
        if array.shape[1:] != arrays[0].shape[1:]:
            raise DataError(
                f"{path}: the value '{name}' has the shape {shown(list(array.shape[1:]))}, but "
                f"{shown(list(arrays[0].shape[1:]))} in {stores.paths[0]}"
            )
    return np.concatenate(arrays)


def _build_column(
    stores: Stores, name: str, max_bytes: int, is_image: IsImage
) -> tuple[Column, bool]:
    """Return the column of a field, and whether its arrays are pairs of complex numbers' parts."""
    ragged = [name in contents.spans for contents in stores.contents]
    if any(ragged):
        if not all(ragged):
            path = stores.paths[ragged.index(False)]
            raise DataError(f"{path}: '{name}' has no ragged rows, and other files have them")
        return _build_ragged(stores, name, is_image), False
    rows = _Rows.of(stores, name)
    layout, pairs = rows.find_layout(name)
    column = rows.make_spans(layout) or rows.make_chunks(layout, max_bytes)
    if layout.dtype == "uint8" and len(layout.shape_of(0)) == 1 and _is_of_images(column, is_image):
        column = rows.make_spans(None) or rows.make_chunks(None, max_bytes)
    return column, pairs


def _is_of_images(column: Column, is_image: IsImage) -> bool:
    try:
        return bool(is_image(column.read(np.zeros(1, np.int64))[0]))
    except (OSError, ValueError) as e:
        raise DataError(f"{column.location(0, 'row 0')}: its first sample: {e}") from e


def _build_ragged(stores: Stores, name: str, is_image: IsImage) -> Column:
    spans = [contents.spans[name] for contents in stores.contents]
    for path, part in zip(stores.paths, spans, strict=True):
        if part.dtype != spans[0].dtype:
            raise DataError(
                f"{path}: '{name}' has ragged rows of {part.dtype}, but of {spans[0].dtype} in "
                f"{stores.paths[0]}"
            )
    offset = np.concatenate([part.offset for part in spans])
    length = np.concatenate([part.length for part in spans])
    files = stores.make_relative(stores.paths)
    column = SpanColumn(stores.root, files, stores.store, offset, length)
    written = np.flatnonzero(length)
    if spans[0].dtype == "uint8" and len(written) and is_image(column.read(written[:1])[0]):
        return column
    counts = length // np.dtype(spans[0].dtype).itemsize
    layout = ArrayLayout.of_shapes(spans[0].dtype, counts[:, None])
    return SpanColumn(stores.root, files, stores.store, offset, length, layout)


@dataclass(frozen=True)
class _Rows:
    """The rows of a field in all stores.

    Attributes:
        stores: The stores.
        grids: The grids of all stores.
        rows: The rows of all stores: `grid`, `first` and `places.file` count over all of them.
        files: The files of all stores.
    """

    stores: Stores
    grids: list[ChunkGrid]
    rows: StoredRows
    files: StringArray

    @classmethod
    def of(cls, stores: Stores, name: str) -> "_Rows":
        contents = stores.contents
        joined = join_rows([c.rows[name] for c in contents], [len(c.files) for c in contents])
        files = stores.make_relative([file for c in contents for file in c.files])
        return cls(stores, [ChunkGrid.from_json(entry) for entry in joined.grids], joined, files)

    def find_layout(self, name: str) -> tuple[ArrayLayout, bool]:
        """Return the dtype and shapes of the arrays, and whether they are pairs of parts.

        Raises:
            DataError: Arrays differ in dtype or number of axes, or hold no numbers.
        """
        used = np.unique(self.rows.grid)
        first = self.grids[int(used[0])]
        for number in used.tolist():
            grid = self.grids[number]
            where = self.stores.paths[self.stores.store[int(np.argmax(self.rows.grid == number))]]
            if grid.native != first.native:
                raise DataError(
                    f"{where}: '{name}' is of {grid.native}, but of {first.native} in "
                    f"{self.stores.paths[0]}: arrays of one field are all of one dtype"
                )
            if len(grid.shape) != len(first.shape):
                raise DataError(
                    f"{where}: samples of '{name}' have the shape {shown(list(grid.shape[1:]))}, "
                    f"but {shown(list(first.shape[1:]))} in {self.stores.paths[0]}: they should "
                    "all have the same axes"
                )
            if not all(grid.shape[1:]):
                raise DataError(f"{where}: '{name}' holds no numbers: leave the file out")
        pairs = first.native.kind == "c"
        dtype = _PARTS[first.native.name] if pairs else first.native.name
        shapes = np.array([[*grid.shape[1:], *[2] * pairs] for grid in self.grids], np.int64)
        shapes = shapes.reshape(len(self.grids), -1)
        if (shapes[used] == shapes[used[0]]).all():
            return ArrayLayout.of_shapes(dtype, shapes[used]), pairs
        return ArrayLayout.of_shapes(dtype, shapes[self.rows.grid]), pairs

    def make_spans(self, layout: ArrayLayout | None) -> SpanColumn | None:
        """Return the rows as byte ranges of files; None if some are not stored as in memory."""
        rows, places = self.rows, self.rows.places
        if not all(grid.is_plain for grid in self.grids):
            return None
        sizes = np.array([grid.chunk[0] for grid in self.grids], np.int64)[rows.grid]
        chunk = rows.first + rows.row // sizes
        if (places.offset[chunk] == ABSENT).any():
            return None
        length = np.array([grid.row_bytes for grid in self.grids], np.int64)[rows.grid]
        inside = rows.row % sizes * length
        short = np.flatnonzero(inside + length > places.size[chunk])
        if len(short):
            row = int(short[0])
            path = os.path.join(self.stores.root, self.files[int(places.file[chunk[row]])])
            raise DataError(f"{path}: cut off: it ends before row {int(rows.row[row])} does")
        numbers, file = np.unique(places.file[chunk].astype(np.int64), return_inverse=True)
        return SpanColumn(
            self.stores.root,
            self.files.take(numbers),
            file.astype(np.int32),
            places.offset[chunk] + inside,
            length,
            layout,
        )

    def make_chunks(self, layout: ArrayLayout | None, max_bytes: int) -> ChunkColumn:
        """Return the rows as parts of chunks that are decoded."""
        rows, stores = self.rows, self.stores
        return ChunkColumn(
            stores.root,
            self.files,
            stores.make_relative(stores.paths),
            ChunkTable(rows.grids, rows.places),
            rows.grid,
            rows.first,
            rows.row,
            stores.store,
            max_bytes,
            layout,
        )
