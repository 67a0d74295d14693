"""ChunkColumn: reads samples out of the chunks of HDF5 and Zarr arrays."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import chunk_cache
from gpupipe.dataset.columns import ArrayLayout, Column, Rows, StringArray
from gpupipe.dataset.reading import Span, read_rows_in_parallel, read_spans, read_states
from gpupipe.formats.chunk_codecs import PACKAGES
from gpupipe.formats.chunk_grid import ChunkGrid
from gpupipe.formats.stored_arrays import ChunkPlaces

ABSENT = -1
"""The offset of a chunk that is not stored: all of its numbers are the fill value."""


@dataclass(frozen=True)
class ChunkTable:
    """The chunks that the rows of a column lie in.

    Attributes:
        grids: The grids of the arrays, as ChunkGrid.to_json returns them.
        places: Where the chunks are: `file` counts in the column's `files`.
    """

    grids: list[Any]
    places: ChunkPlaces

    @cached_property
    def parsed(self) -> list[ChunkGrid]:
        """The grids."""
        return [ChunkGrid.from_json(entry) for entry in self.grids]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The rows of a chunk, and the chunks that hold a row, of each grid, int64 (2, grids)."""
        pairs = [(grid.chunk[0], grid.chunks_per_row) for grid in self.parsed]
        return np.array(pairs, np.int64).reshape(-1, 2).T

    def is_consistent(self, num_files: int) -> bool:
        """Return whether a table that was read from a file has places of equal length in files."""
        places = self.places
        lengths = {len(places.file), len(places.offset), len(places.size), len(places.mask)}
        is_within = not len(places) or 0 <= places.file.min() <= places.file.max() < num_files
        return len(lengths) == 1 and bool(is_within)


@dataclass(frozen=True)
class ChunkColumn(Column):
    """A field whose samples are rows of arrays that are cut into chunks.

    Chunks are read from their files and decoded by the calling thread, mostly without the GIL and
    without a lock of a library. A process keeps those that it used last.

    Attributes:
        root: The folder that `files` and `stores` are relative to.
        files: The files that hold the chunks.
        stores: The HDF5 files or Zarr stores, for messages.
        table: The chunks.
        grid: For each of the N rows, the position of its array's grid in the table, int32 (N,).
        first: The position in the table of the first chunk of its array, int64 (N,).
        row: The row in its array, int64 (N,).
        store: The position of its store in `stores`, int32 (N,).
        max_bytes: The bytes of decoded chunks that a process keeps.
        array: Dtype and shapes; None if the rows are image files.
    """

    root: str
    files: StringArray
    stores: StringArray
    table: ChunkTable
    grid: NDArray[np.int32]
    first: NDArray[np.int64]
    row: NDArray[np.int64]
    store: NDArray[np.int32]
    max_bytes: int
    array: ArrayLayout | None = None

    def __len__(self) -> int:
        return len(self.row)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        grids = [self.table.parsed[number] for number in self.grid[rows].tolist()]
        needed = [
            range(first, first + grid.chunks_per_row)
            for first, grid in zip(self.number_chunks(rows).tolist(), grids, strict=True)
        ]
        grid_of = {n: grid for chunks, grid in zip(needed, grids, strict=True) for n in chunks}
        decoded = self._decode_all(list(grid_of), list(grid_of.values()))
        contents = []
        for row, grid, chunks in zip(self.row[rows].tolist(), grids, needed, strict=True):
            array = grid.cut_row(row, [decoded[number] for number in chunks])
            contents.append(array.reshape(-1).view(np.uint8))
        return contents

    def _decode_all(
        self, numbers: Sequence[int], grids: Sequence[ChunkGrid]
    ) -> dict[int, NDArray[Any]]:
        """Return the numbers of chunks by the chunk's position in the table."""
        offsets = self.table.places.offset[list(numbers)].tolist()
        filled = {
            number: grid.make_filled()
            for number, grid, offset in zip(numbers, grids, offsets, strict=True)
            if offset == ABSENT
        }
        stored = [n for n, offset in enumerate(offsets) if offset != ABSENT]

        def decode(positions: Sequence[int]) -> list[NDArray[Any]]:
            chosen = [stored[position] for position in positions]
            contents = self._read_chunks([numbers[n] for n in chosen])

            def decode_one(k: int) -> NDArray[Any]:
                return self._decode(contents[k], numbers[chosen[k]], grids[chosen[k]])

            return read_rows_in_parallel(decode_one, range(len(chosen)))

        if any(grids[n].shares_chunks for n in stored):
            spans = self._list_spans([numbers[n] for n in stored])
            paths = list(dict.fromkeys(span.path for span in spans))
            states = dict(zip(paths, read_states(paths), strict=True))
            keys = [(span.path, span.offset, states[span.path]) for span in spans]
            arrays = chunk_cache.chunks.get(keys, decode, self.max_bytes)
        else:
            arrays = decode(range(len(stored)))
        return filled | {numbers[n]: array for n, array in zip(stored, arrays, strict=True)}

    def _decode(self, data: NDArray[np.uint8], number: int, grid: ChunkGrid) -> NDArray[Any]:
        try:
            chunk = grid.decode(data, int(self.table.places.mask[number]))
        except ImportError as e:
            package = PACKAGES.get(str(e.name), e.name)
            raise ValueError(
                f"its chunks need the package {package}, which is not installed: run pip install "
                f"{package}"
            ) from e
        if grid.shares_chunks:
            chunk.flags.writeable = False  # other samples share it
        return chunk

    def _read_chunks(self, numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return the bytes of stored chunks, by their positions in the table."""
        return read_spans(self._list_spans(numbers))

    def _list_spans(self, numbers: Sequence[int]) -> list[Span]:
        places, chosen = self.table.places, list(numbers)
        files, offsets = places.file[chosen].tolist(), places.offset[chosen].tolist()
        paths = {file: os.path.join(self.root, self.files[file]) for file in set(files)}
        spans = zip(files, offsets, places.size[chosen].tolist(), strict=True)
        return [Span(paths[file], offset, size) for file, offset, size in spans]

    def location(self, row: int, name: str) -> str:
        return f"{os.path.join(self.root, self.stores[int(self.store[row])])}:{name}"

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        grids = StringArray.from_strings(map(repr, self.table.grids))
        parts = [*self.stores.fingerprint_parts, *grids.fingerprint_parts, self.table.places.size]
        return [*parts, self.grid, self.row, self.store]

    def take(self, rows: Rows) -> Self:
        return replace(
            self,
            grid=self.grid[rows],
            first=self.first[rows],
            row=self.row[rows],
            store=self.store[rows],
            array=None if self.array is None else self.array.take(rows),
        )

    @property
    def shares_chunks(self) -> bool:
        """Whether there are chunks that hold parts of several rows."""
        return any(grid.shares_chunks for grid in self.table.parsed)

    @property
    def max_row_of_chunks(self) -> int:
        """The bytes of the decoded chunks that hold one row, at most."""
        return max(self._bytes_of_grids)

    @property
    def largest_row(self) -> int:
        """The first row whose decoded chunks have the most bytes."""
        sizes = self._bytes_of_grids
        return int(np.argmax(self.grid == sizes.index(max(sizes))))

    @property
    def _bytes_of_grids(self) -> list[int]:
        return [grid.chunk_bytes * grid.chunks_per_row for grid in self.table.parsed]

    def number_chunks(self, rows: Rows | None = None) -> NDArray[np.int64]:
        """Return for each row the position in the table of the first chunk that holds it.

        Args:
            rows: The rows; None: all.
        """
        chosen = slice(None) if rows is None else rows
        sizes, counts = self.table.sizes[:, self.grid[chosen]]
        chunk: NDArray[np.int64] = self.first[chosen] + self.row[chosen] // sizes * counts
        return chunk
