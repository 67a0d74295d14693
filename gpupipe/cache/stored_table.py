"""The table of a stored shard: its samples, and where in the shard their bytes are.

A stored shard is a shard that lies in the store, and is cached as it is there.
"""

import errno
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.settings import DataSet
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.annotation_faults import Faults
from gpupipe.dataset.chunk_column import ABSENT, ChunkColumn
from gpupipe.dataset.class_names import number_labels
from gpupipe.dataset.columns import ArrayLayout, Column, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index import Index
from gpupipe.dataset.reading import map_file
from gpupipe.dataset.table_file import open_table, write_table
from gpupipe.errors import DataError, shown
from gpupipe.formats.chunk_grid import ChunkGrid
from gpupipe.formats.stored_arrays import ChunkPlaces, StoredRows
from gpupipe.runtime.installation import compute_crc32s

_BLOCK = 1 << 22


@dataclass(frozen=True)
class ChunkedField:
    """The samples of a field that lie in C chunks of the file.

    Attributes:
        rows: The samples, and where the C chunks are in the file.
        checksum: CRC-32 of the bytes of each chunk in the file, uint32 (C,); 0 if it is not stored.
        array: Dtype and shapes of arrays; None for image files.
    """

    rows: StoredRows
    checksum: NDArray[np.uint32]
    array: ArrayLayout | None


@dataclass(frozen=True)
class FieldTable:
    """The byte ranges of the file that are the N samples of a field.

    Attributes:
        offset: The first byte of each sample in the file, int64 (N,).
        length: The number of bytes of each sample, int64 (N,).
        checksum: CRC-32 of these bytes, uint32 (N,).
        array: Dtype and shapes of arrays; None for image files.
    """

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    checksum: NDArray[np.uint32]
    array: ArrayLayout | None

    def as_chunks(self) -> ChunkedField:
        """Return the same samples, each as a chunk of its own."""
        layout = self.array or ArrayLayout("uint8", None, self.length[:, None])
        count = len(self.length)
        shapes = layout.shapes
        if shapes is None:
            shapes = np.tile(np.array(layout.shape, np.int64), (count, 1))
        different, grid = np.unique(shapes, axis=0, return_inverse=True)
        dtype, zeros = np.dtype(layout.dtype).str, np.zeros(count, np.int64)
        grids = [ChunkGrid(dtype, (1, *shape), (1, *shape)) for shape in different.tolist()]
        rows = StoredRows(
            [each.to_json() for each in grids],
            grid.reshape(-1).astype(np.int32),
            np.arange(count),
            zeros,
            ChunkPlaces(zeros.astype(np.int32), self.offset, self.length, zeros),
        )
        return ChunkedField(rows, self.checksum, self.array)


@dataclass(frozen=True)
class ShardTable:
    """The N samples of a stored shard. The attributes are those of an Index.

    Attributes:
        names: The name of each sample.
        labels: The class of each sample, int64 (N,); -1 if samples have none.
        fields: Where the samples of each field are.
        values: Further numbers of each sample, by name.
        annotations: The annotations, by field.
        sizes: [height, width] of each stored image in pixels, int32 (N, 2), by field of images.
        faults: The samples whose annotations cannot be used.
    """

    names: StringArray
    labels: NDArray[np.int64]
    fields: dict[str, FieldTable | ChunkedField]
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    annotations: dict[str, AnnotationColumn] = field(default_factory=dict)
    sizes: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults.none)

    def __len__(self) -> int:
        return len(self.labels)


class WrongLabelsError(DataError):
    """`data.classes` does not number the labels of a shard."""


def create_table(index: Index, dataset: DataSet, path: Path) -> ShardTable:
    """Return the table of a shard, with the checksum of each sample, or of each chunk.

    Args:
        index: The samples of the shard.
        dataset: The data set.
        path: The shard.

    Raises:
        WrongLabelsError: `dataset.classes` lacks a label.
    """
    fields = {name: _find_field(column, path) for name, column in index.columns.items()}
    own = f"{path}:"
    names = index.names
    if len(names) and names[0].startswith(own):
        names = StringArray.from_strings(names[n].removeprefix(own) for n in range(len(names)))
    return ShardTable(
        names,
        _number_labels(index, dataset.classes, path),
        fields,
        index.values,
        index.annotations,
        index.sizes,
        index.faults,
    )


def create_empty() -> ShardTable:
    """Return the table of a shard without samples."""
    return ShardTable(StringArray.from_strings([]), np.empty(0, np.int64), {})


def _find_field(column: Column, path: Path) -> FieldTable | ChunkedField:
    """Return where the samples of a column are in the shard at `path`."""
    if isinstance(column, SpanColumn):
        checksum = _compute_checksums(Path(column.path(0)), column.offset, column.length)
        return FieldTable(column.offset, column.length, checksum, column.array)
    assert isinstance(column, ChunkColumn)
    table = column.table
    rows = StoredRows(table.grids, column.grid, column.first, column.row, table.places)
    is_stored = table.places.offset != ABSENT
    checksum = np.zeros(len(table.places), np.uint32)
    checksum[is_stored] = _compute_checksums(
        path, table.places.offset[is_stored], table.places.size[is_stored]
    )
    return ChunkedField(rows, checksum, column.array)


def _compute_checksums(
    path: Path, offset: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.uint32]:
    data, spans = map_file(path), zip(offset.tolist(), length.tolist(), strict=True)
    checksums = compute_crc32s([data[begin : begin + count] for begin, count in spans])
    return np.array(checksums, np.uint32)


def _number_labels(index: Index, classes: tuple[str, ...], path: Path) -> NDArray[np.int64]:
    """Return the labels of a shard as numbers that do not depend on other shards, int64 (N,).

    Labels that are numbers stay as they are. Names are the positions in `classes`.
    """
    if not index.has_labels:
        return index.labels
    own = index.classes
    has_numbers = own == [str(number) for number in range(len(own))]
    if classes:

        def locate(n: int) -> str:
            name = index.names[n]
            return name if name.startswith(f"{path}:") else f"{path}:{name}"

        labels = index.labels if has_numbers else [own[n] for n in index.labels.tolist()]
        try:
            return number_labels(labels, len(index), locate, classes)[0]
        except DataError as e:
            raise WrongLabelsError(str(e)) from e
    if has_numbers:
        return index.labels
    raise WrongLabelsError(
        f"{path}: labels are names, such as {shown(own[0])}, whose numbers would depend on "
        "which shards come first: list all names in data.classes, or set data.label to null"
    )


def save_table(table: ShardTable, path: Path) -> None:
    """Write the table of a shard. The same table always gives the same bytes."""
    write_table(path, table)


def load_table(path: Path) -> ShardTable:
    """Return the table of a shard, with its arrays memory-mapped.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        return open_table(path, ShardTable)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        why = f"cannot be read: {e.strerror or e}" if isinstance(e, OSError) else f"damaged: {e}"
        raise DataError(
            f"{path}: {why}: run 'gpupipe cache verify CONFIG', which mends the cache"
        ) from e


def hash_files(*paths: Path) -> str:
    """Return a 128-bit hash of files in hexadecimal, made of the CRC-32 of each 4 MiB.

    It finds damage. It takes a twentieth of the time of a hash of all bytes, which would be the
    largest part of a download worker's time. Holes of files are zeros that are not read.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        data, zeros = map_file(path), np.zeros(_BLOCK, np.uint8)
        blocks = []
        with path.open("rb") as f:
            for begin in range(0, len(data), _BLOCK):
                block = data[begin : begin + _BLOCK]
                is_hole = _is_hole(f.fileno(), begin, begin + len(block))
                blocks.append(zeros[: len(block)] if is_hole else block)
        digest.update(json.dumps([len(data), compute_crc32s(blocks)]).encode())
    return digest.hexdigest()


def _is_hole(file: int, begin: int, end: int) -> bool:
    """Return whether an open file has only holes between two bytes."""
    try:
        return os.lseek(file, begin, os.SEEK_DATA) >= end
    except OSError as e:
        return e.errno == errno.ENXIO  # there is no data up to the end of the file
