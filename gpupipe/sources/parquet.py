"""parquet: image files inside the columns of .parquet files, as Hugging Face's hub has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset import index_cache, index_file
from gpupipe.dataset.index import Index, spans_of
from gpupipe.dataset.shard_index import ByteRanges, ShardFile
from gpupipe.dataset.shards import ShardedSource, name_shard
from gpupipe.errors import DataError, did_you_mean
from gpupipe.formats import Damaged
from gpupipe.runtime.atomic_write import write_atomically
from gpupipe.runtime.extras import require_extra

_ROWS_AT_ONCE = 64
_BYTES = "bytes"
"""The part of a struct that holds the image file, in the data sets of Hugging Face."""


class Parquet(ShardedSource):
    """The rows of .parquet files, with image files in their columns. Needs pyarrow.

    A column holds bytes, or structs with a part `bytes`, as the data sets of Hugging Face have
    them. Parquet compresses its pages, so that no image can be mapped where it is. The images of
    a shard are written to a file in the cache folder once, which takes as much room as they do.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
        fields: The column of each field's image files, by the field's name in a batch. The first
            field is the one that steps work on.
        label: The column of labels, whole numbers or names; null if there are none.
        values: Columns of numbers, by the name of the value in a batch. They are int64 if all are
            whole, else float64.
    """

    name: ClassVar[str] = "parquet"

    fields: dict[str, str] = Field(default={"image": "image"}, min_length=1)
    label: str | None = "label"
    values: dict[str, str] = Field(default={})

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), list(self.values)

    def is_usable(self, index: Index) -> bool:
        column = spans_of(index, next(iter(self.fields)))
        return all(Path(column.path(n)).is_file() for n in range(len(column.files)))

    def read(self, path: Path) -> list[ShardFile]:
        require_extra("parquet", ("pyarrow",), f"reading {path}", DataError)
        import pyarrow.parquet

        with name_shard(path):
            try:
                with pyarrow.parquet.ParquetFile(path) as table:
                    return [self._unpack(path, table)]
            except pyarrow.ArrowException as e:
                raise Damaged(f"no .parquet that can be read: {str(e).splitlines()[0]}") from e

    def _unpack(self, path: Path, table: Any) -> ShardFile:
        """Write the image files of a shard to a file in the cache folder, and index them."""
        further = [*([self.label] if self.label else []), *self.values.values()]
        columns = [*self.fields.values(), *further]
        for column in columns:
            if column not in table.schema_arrow.names:
                known = did_you_mean(column, table.schema_arrow.names)
                raise ValueError(f"has no column '{column}'{known}")
        unpacked = index_cache.get_path(
            "parquet", str(path), index_file.file_state(path), list(self.fields.values())
        ).with_suffix(".parts")
        spans: dict[str, list[tuple[int, int]]] = {name: [] for name in self.fields}
        others: dict[str, list[Any]] = {column: [] for column in further}
        try:
            unpacked.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(unpacked) as temporary, temporary.open("wb") as file:
                for batch in _iter_batches(table, columns):
                    for column in others:
                        others[column] += _check_column(batch, column)
                    for name, column in self.fields.items():
                        for content in _iter_images(batch, column):
                            spans[name].append((file.tell(), file.write(content)))
        except OSError as e:
            raise DataError(
                f"{unpacked}: cannot be written ({e.strerror or e}): the images of {path} are "
                "unpacked there: set GPUPIPE_CACHE to a folder that can"
            ) from e
        return self._describe(path, unpacked, spans, others)

    def _describe(
        self,
        path: Path,
        unpacked: Path,
        spans: Mapping[str, list[tuple[int, int]]],
        others: Mapping[str, list[Any]],
    ) -> ShardFile:
        fields = {
            name: ByteRanges(*np.array(parts, np.int64).reshape(-1, 2).T)
            for name, parts in spans.items()
        }
        count = len(next(iter(spans.values())))
        values = {name: _to_numbers(column, others[column]) for name, column in self.values.items()}
        labels = None if self.label is None else _to_labels(self.label, others[self.label])
        names = [f"{path}:row {n}" for n in range(count)]
        return ShardFile(names, fields, labels, values, unpacked)

    def explain_empty(self) -> str:
        return "the files hold no rows: set data.shards"


def _iter_batches(table: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows, some at a time. Raises Damaged if they cannot be read."""
    names = list(dict.fromkeys(columns))
    # pyarrow's threads would still exist when the DataLoader forks its workers.
    batches = table.iter_batches(_ROWS_AT_ONCE, columns=names, use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except OSError as e:  # of pyarrow, which raises it for damaged pages
            raise Damaged(f"rows that cannot be read: {str(e).splitlines()[0]}") from e
        if batch is None:
            return
        yield batch


def _check_column(batch: Any, column: str) -> list[Any]:
    values: list[Any] = batch.column(column).to_pylist()
    if None in values:
        raise ValueError(f"has no value in the column '{column}' of a row: fill it in")
    return values


def _iter_images(batch: Any, column: str) -> Iterator[bytes]:
    for value in _check_column(batch, column):
        content = value.get(_BYTES) if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            kind = batch.schema.field(column).type
            raise ValueError(
                f"the column '{column}' holds {kind}, and no image files: a list of paths is "
                "'source: file_list'"
            )
        yield content


def _to_labels(column: str, values: list[Any]) -> list[str] | NDArray[np.int64]:
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return np.array(values, np.int64)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"the column '{column}' holds no labels: whole numbers or names")
    return values


def _to_numbers(column: str, values: list[Any]) -> NDArray[Any]:
    if not all(isinstance(value, (int, float)) for value in values):
        raise ValueError(f"the column '{column}' holds no numbers: leave it out of data.values")
    is_whole = all(isinstance(value, int) for value in values)
    return np.array(values, np.int64 if is_whole else np.float64)
