"""The table of a stored shard: its samples, and where in the shard their bytes are.

A stored shard is a shard that lies in the store, and is cached as it is there.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.settings import DataSet
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.annotation_faults import Faults
from gpupipe.dataset.columns import ArrayLayout, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index import Index
from gpupipe.dataset.reading import map_file
from gpupipe.dataset.source import Source
from gpupipe.dataset.table_file import open_table, write_table
from gpupipe.errors import DataError, shown
from gpupipe.runtime.installation import compute_crc32s

_BLOCK = 1 << 22


@dataclass(frozen=True)
class FieldTable:
    """Where the bytes of a field are, for N samples.

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


@dataclass(frozen=True)
class ShardTable:
    """The N samples of a stored shard. The attributes are those of an Index.

    Attributes:
        names: The name of each sample.
        labels: The class of each sample, int64 (N,); -1 if samples have none.
        fields: Where the bytes of each field are.
        values: Further numbers of each sample, by name.
        annotations: The annotations, by field.
        sizes: [height, width] of each stored image in pixels, int32 (N, 2), by field of images.
        faults: The samples whose annotations cannot be used.
    """

    names: StringArray
    labels: NDArray[np.int64]
    fields: dict[str, FieldTable]
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    annotations: dict[str, AnnotationColumn] = field(default_factory=dict)
    sizes: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults.none)

    def __len__(self) -> int:
        return len(self.labels)


def index_shard(dataset: DataSet, source: Source, path: Path) -> ShardTable:
    """Index a shard, and compute the checksum of each sample.

    Args:
        dataset: The data set.
        source: The source that reads the shard.
        path: The shard.

    Raises:
        DataError: The shard is damaged or has no samples, or `dataset.classes` lacks a label.
    """
    index = source.index_file(path)
    fields = {}
    for name, column in index.columns.items():
        assert isinstance(column, SpanColumn)
        data = map_file(Path(column.path(0)))
        spans = zip(column.offset.tolist(), column.length.tolist(), strict=True)
        checksums = compute_crc32s([data[begin : begin + length] for begin, length in spans])
        fields[name] = FieldTable(
            column.offset, column.length, np.array(checksums, np.uint32), column.array
        )
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


def _number_labels(index: Index, classes: tuple[str, ...], path: Path) -> NDArray[np.int64]:
    """Return the labels of a shard as numbers that do not depend on other shards, int64 (N,).

    Labels that are numbers stay as they are. Names are the positions in `classes`.
    """
    if not index.has_labels:
        return index.labels
    own = index.classes
    if own == [str(number) for number in range(len(own))]:
        largest = int(index.labels.max())
        if classes and largest >= len(classes):
            raise DataError(
                f"{path}: the label {largest} is beyond the {len(classes):,} names in data.classes"
            )
        return index.labels
    if not classes:
        raise DataError(
            f"{path}: labels are names, such as {shown(own[0])}, whose numbers would depend on "
            "which shards come first: list all names in data.classes, or write label: null"
        )
    number_of = {name: number for number, name in enumerate(classes)}
    for name in own:
        if name not in number_of:
            raise DataError(f"{path}: the label {shown(name)} is not in data.classes")
    return np.array([number_of[name] for name in own], np.int64)[index.labels]


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
    largest part of a download worker's time.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        data = map_file(path)
        blocks = [data[begin : begin + _BLOCK] for begin in range(0, len(data), _BLOCK)]
        digest.update(json.dumps([len(data), compute_crc32s(blocks)]).encode())
    return digest.hexdigest()
