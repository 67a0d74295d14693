"""mds: samples in shards of MosaicML's Streaming, one sample a row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from gpupipe.dataset.reading import map_file
from gpupipe.dataset.shards import (
    ByteRanges,
    ShardedSource,
    ShardFile,
    array_spec,
    find_files,
    name_shard,
)
from gpupipe.dataset.spec import Spec
from gpupipe.errors import did_you_mean
from gpupipe.formats.mds import IMAGES, TEXTS, Bytes, MdsColumn, parse_shard


class Mds(ShardedSource):
    """The samples in MDS shards, as MosaicML's Streaming writes them without compression.

    A column of the encoding `jpeg`, `png` or `bytes` holds image files, and one such as
    `ndarray:float32:3,64,64` arrays. Each shard describes its columns, so `index.json` is not read.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
        fields: The column of each field: {FIELD: COLUMN}, where FIELD is the name in a batch. The
            first field is the one that steps work on.
        label: The column of labels, whole numbers or texts; null if there are none.
        values: Columns of numbers: {VALUE: COLUMN}, where VALUE is the name in a batch.
    """

    name: ClassVar[str] = "mds"

    fields: dict[str, str] = Field(default={"image": "image"}, min_length=1)
    label: str | None = "label"
    values: dict[str, str] = Field(default={})

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), list(self.values)

    def specs(self) -> dict[str, Spec]:
        path = find_files(self.shards)[0]
        with name_shard(path):
            columns = parse_shard(map_file(path))
            found = {field: _find(columns, name).array for field, name in self.fields.items()}
        return {
            field: Spec() if array is None else array_spec(*array) for field, array in found.items()
        }

    def read(self, path: Path) -> list[ShardFile]:
        with name_shard(path):
            data = map_file(path)
            columns = parse_shard(data)
            count = len(next(iter(columns.values())).begin)
            if not count:
                return []
            fields = {
                field: _locate(name, _find(columns, name)) for field, name in self.fields.items()
            }
            labels = None
            if self.label is not None:
                labels = _read_labels(self.label, _find(columns, self.label), data)
            values = {
                value: _read_numbers(name, _find(columns, name), data)
                for value, name in self.values.items()
            }
            return [ShardFile([str(n) for n in range(count)], fields, labels, values)]


def _find(columns: dict[str, MdsColumn], name: str) -> MdsColumn:
    if name not in columns:
        raise ValueError(
            f"has no column '{name}'{did_you_mean(name, columns)}: it has {', '.join(columns)}"
        )
    return columns[name]


def _locate(name: str, column: MdsColumn) -> ByteRanges:
    length = column.end - column.begin
    if column.array is not None:
        dtype, shape = column.array
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if (length != size).any():
            raise ValueError(f"an array of the column '{name}' that is not {size:,} bytes long")
        shapes = np.tile(np.array(shape, np.int64), (len(length), 1))
        return ByteRanges(column.begin, length, dtype, shapes)
    if column.encoding not in IMAGES:
        raise ValueError(
            f"the column '{name}' is of the encoding {column.encoding}, and a field needs jpeg, "
            "png, bytes, or an ndarray of a fixed dtype and shape: set data.fields"
        )
    return ByteRanges(column.begin, length)


def _read_labels(name: str, column: MdsColumn, data: Bytes) -> Any:
    if column.encoding in TEXTS:
        return column.read_texts(data)
    numbers = _read_numbers(name, column, data)
    if numbers.dtype.kind not in "iu":
        raise ValueError(
            f"the column '{name}' holds {column.encoding}, and no labels: set data.label"
        )
    return numbers.astype(np.int64)


def _read_numbers(name: str, column: MdsColumn, data: Bytes) -> Any:
    if not column.is_number:
        raise ValueError(
            f"the column '{name}' is of the encoding {column.encoding}, and holds no numbers: set "
            "data.label or data.values"
        )
    return column.read_numbers(data)
