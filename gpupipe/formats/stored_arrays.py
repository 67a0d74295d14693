"""What an HDF5 file or a Zarr store holds: where the numbers of each sample are in its files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from json import dumps, loads
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats.chunk_grid import ChunkGrid


@dataclass(frozen=True)
class StoreRequest:
    """What to read of a store.

    Attributes:
        fields: The path of the array of each field in the store, by the field's name.
        label: The path of the array of labels, or "@NAME" for an attribute of a sample's group;
            None if there are none.
        values: The path of the array of each value, by the value's name.
        groups: The group whose members are the samples; the other paths are then relative to each
            member. None: each row along the first axis of an array is a sample.
    """

    fields: dict[str, str]
    label: str | None
    values: dict[str, str]
    groups: str | None

    def list_paths(self) -> list[str]:
        """Return the path of each field, of the label, and of each value, in this order."""
        label = [] if self.label is None else [self.label]
        return [*self.fields.values(), *label, *self.values.values()]


@dataclass(frozen=True)
class ChunkPlaces:
    """Where the C chunks of arrays are stored.

    Attributes:
        file: The position of the chunk's file in the list of files, int32 (C,).
        offset: Its first byte, int64 (C,); -1 if the chunk is not stored, and has the fill value.
        size: Its number of bytes in the file, int64 (C,).
        mask: Bit n is set if codec n was left out when the chunk was written, int64 (C,).
    """

    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    mask: NDArray[np.int64]

    @classmethod
    def make_missing(cls, count: int) -> "ChunkPlaces":
        """Return the places of `count` chunks, none of which is stored."""
        zeros = np.zeros(count, np.int64)
        return cls(np.zeros(count, np.int32), np.full(count, -1, np.int64), zeros, zeros.copy())

    @classmethod
    def join(cls, every: "list[ChunkPlaces]") -> "ChunkPlaces":
        """Concatenate places."""
        if not every:
            return cls.make_missing(0)
        return cls(
            np.concatenate([places.file for places in every]),
            np.concatenate([places.offset for places in every]),
            np.concatenate([places.size for places in every]),
            np.concatenate([places.mask for places in every]),
        )

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True)
class StoredRows:
    """The N samples of a field whose arrays are cut into chunks.

    Attributes:
        grids: The grids of the arrays, each once, as ChunkGrid.to_json returns them.
        grid: The position of each sample's grid in `grids`, int32 (N,).
        first: The position in `places` of the first chunk of the sample's array, int64 (N,).
        row: The sample's row in its array, int64 (N,).
        places: Where the chunks are.
    """

    grids: list[Any]
    grid: NDArray[np.int32]
    first: NDArray[np.int64]
    row: NDArray[np.int64]
    places: ChunkPlaces


@dataclass(frozen=True)
class StoredSpans:
    """The N samples of a field of ragged arrays: each is a byte range of the file.

    Attributes:
        dtype: NumPy's name of the dtype of the numbers.
        offset: The first byte of each sample, int64 (N,).
        length: The number of bytes of each sample, int64 (N,).
    """

    dtype: str
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


@dataclass(frozen=True)
class StoreContents:
    """What one store holds of what a StoreRequest asks for.

    Attributes:
        count: The number of samples.
        names: The name of each sample; [] if samples are rows.
        files: The files that hold the bytes.
        rows: The fields that are cut into chunks.
        spans: The fields of ragged arrays.
        labels: The label of each sample, int64 (N,), if labels are numbers; else (0,).
        texts: The label of each sample, if labels are texts; else [].
        values: The numbers of each value, (N,) or (N, n).
    """

    count: int
    names: list[str]
    files: list[str]
    rows: dict[str, StoredRows]
    spans: dict[str, StoredSpans]
    labels: NDArray[np.int64]
    texts: list[str]
    values: dict[str, NDArray[Any]]


def join_rows(every: Sequence[StoredRows], num_files: Sequence[int]) -> StoredRows:
    """Concatenate the rows of a field in several stores.

    Args:
        every: The rows of each store.
        num_files: The number of files of each store. `places.file` then counts over all of them.
    """
    numbers: dict[str, int] = {}
    grid, first, num_chunks = list[NDArray[Any]](), list[NDArray[Any]](), 0
    for rows in every:
        own = [numbers.setdefault(dumps(entry), len(numbers)) for entry in rows.grids]
        grid.append(np.array(own, np.int32)[rows.grid])
        first.append(rows.first + num_chunks)
        num_chunks += len(rows.places)
    places = ChunkPlaces.join([rows.places for rows in every])
    starts = np.cumsum([0, *num_files])[:-1]
    file = places.file + np.repeat(starts, [len(rows.places) for rows in every])
    return StoredRows(
        [loads(text) for text in numbers],
        np.concatenate(grid),
        np.concatenate(first),
        np.concatenate([rows.row for rows in every]),
        replace(places, file=file.astype(np.int32)),
    )


class RowsBuilder:
    """Collects the arrays of a field into StoredRows."""

    def __init__(self) -> None:
        self._grids: dict[str, int] = {}
        self._parts: list[tuple[int, int, int]] = []
        self._places: list[ChunkPlaces] = []
        self._num_chunks = 0

    def add(self, grid: ChunkGrid, places: ChunkPlaces) -> None:
        """Add an array; each of its rows is a sample."""
        number = self._grids.setdefault(dumps(grid.to_json()), len(self._grids))
        self._parts.append((number, self._num_chunks, grid.shape[0]))
        self._places.append(places)
        self._num_chunks += len(places)

    def build(self) -> StoredRows:
        """Return the rows of all arrays that were added."""
        grid, first, counts = np.array(self._parts, np.int64).reshape(-1, 3).T
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        return StoredRows(
            [loads(text) for text in self._grids],
            np.repeat(grid.astype(np.int32), counts),
            np.repeat(first, counts),
            np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts),
            ChunkPlaces.join(self._places),
        )
