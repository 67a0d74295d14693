"""parquet: image files inside the columns of .parquet files, as Hugging Face's hub has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from gpupipe.dataset.shard_index import ByteRanges, ShardFile
from gpupipe.dataset.shards import ShardedSource, name_shard, write_parts
from gpupipe.errors import DataError
from gpupipe.formats import Damaged, arrow_columns
from gpupipe.runtime.installation import require_extra

_ROWS_AT_ONCE = 64


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
        others = [*([self.label] if self.label else []), *self.values.values()]
        columns = [*self.fields.values(), *others]
        arrow_columns.check_columns(table.schema_arrow, columns)
        spans: dict[str, list[tuple[int, int]]] = {name: [] for name in self.fields}
        labels, values = list[Any](), {name: list[Any]() for name in self.values}
        key = ("parquet", list(self.fields.values()))
        reason = f"the images of {path} are unpacked there"
        with write_parts(path, key, reason) as (unpacked, file):
            for batch in _iter_batches(table, columns):
                if self.label is not None:
                    column = batch.column(self.label)
                    labels.append(arrow_columns.read_labels(column, self.label))
                for name, column in self.values.items():
                    values[name].append(arrow_columns.read_numbers(batch.column(column), column))
                for name, column in self.fields.items():
                    for image in arrow_columns.find_bytes(batch.column(column), column):
                        spans[name].append((file.tell(), file.write(image.as_buffer())))
        fields = {
            name: ByteRanges(*np.array(parts, np.int64).reshape(-1, 2).T)
            for name, parts in spans.items()
        }
        names = [f"{path}:row {n}" for n in range(len(next(iter(spans.values()))))]
        if not names:
            return ShardFile(names, fields)
        numbers = {name: np.concatenate(parts) for name, parts in values.items()}
        found = arrow_columns.join_labels(labels) if labels else None
        return ShardFile(names, fields, found, numbers, unpacked)

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
