"""hf: data sets of Hugging Face, as save_to_disk writes them, or as Parquet files of the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gpupipe.dataset import labels
from gpupipe.dataset.columns import Column, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.shards import name_shard
from gpupipe.dataset.source import FileSource, Progress, ignore_progress
from gpupipe.errors import DataError, counted
from gpupipe.formats import Damaged, arrow_columns
from gpupipe.runtime.installation import require_extra
from gpupipe.schema.field_types import WHOLE, expand_home
from gpupipe.sources.hub.hub_files import find_hub_files
from gpupipe.sources.hub.row_groups import RowGroupColumn, count_row_groups, unpack_row_groups

_PARQUET = ".parquet"


@dataclass
class _Rows:
    """The rows of a file.

    Attributes:
        spans: Offset and length of each image in an Arrow file, int64 (2, n), by field.
        groups: Row group and row in it of each row of a Parquet file, int32 (2, n).
        others: The columns of labels and values, by the name of the column.
        class_names: The names of the classes, if the label is a ClassLabel; else [].
        count: The number of rows.
    """

    spans: dict[str, list[NDArray[np.int64]]] = field(default_factory=dict)
    groups: list[NDArray[np.int32]] = field(default_factory=list)
    others: dict[str, list[Any]] = field(default_factory=dict)
    class_names: list[str] = field(default_factory=list)
    count: int = 0


class Hf(FileSource):
    """The rows of a Hugging Face data set, with image files in their columns. Needs pyarrow.

    Images in Arrow files, as Dataset.save_to_disk writes them, are read where they are. Of Parquet
    files, as the hub has them, whole row groups are read, or unpacked once. The package
    `datasets` is not needed.

    Attributes:
        root: The folder of the data set. ~ stands for the home directory.
        split: The split, such as "validation"; by default "train", or the only one.
        fields: The column of each field's image files, by the field's name in a batch. The first
            field is the one that steps work on.
        label: The column of labels, whole numbers or names; null if there are none. The classes
            of a ClassLabel have its names.
        values: Columns of numbers, by the name of the value in a batch.
        row_groups: How many row groups of Parquet files each process keeps in memory. Shuffled
            samples are in all of them.
        unpack: Whether the images of Parquet files are written to the cache folder on the first
            load, which takes as much room as they do. "auto" does so if there are more row groups
            than `row_groups`; "always"; "never" reads a row group whenever one of its samples is
            due.
    """

    name: ClassVar[str] = "hf"
    not_indexed: ClassVar[frozenset[str]] = FileSource.not_indexed | {"row_groups", "unpack"}

    root: Annotated[Path, AfterValidator(expand_home)]
    split: str | None = None
    fields: dict[str, str] = Field(default={"image": "image"}, min_length=1)
    label: str | None = "label"
    values: dict[str, str] = Field(default={})
    row_groups: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 64
    unpack: Literal["auto", "always", "never"] = "auto"

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), list(self.values)

    def list_files(self) -> list[Path]:
        require_extra("hf", ("pyarrow",), f"reading {self.root}", DataError)
        return find_hub_files(self.root, self.split)

    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the rows of the split.

        Raises:
            DataError: There is no data set, or a file cannot be read.
        """
        files = self.list_files()
        if files[0].suffix == _PARQUET:
            return self._unpack(self.build(files, progress), progress)  # not saved
        return super().index(progress)

    def explain_absence(self) -> str:
        find_hub_files(self.root, self.split)
        return ""

    def join(self, files: list[Path], every: list[_Rows]) -> Index:
        counts = [rows.count for rows in every]
        if not sum(counts):
            raise DataError(f"{files[0]}: no rows in {counted(len(files), 'file')}")
        root = os.path.commonpath([path.parent for path in files])
        paths = StringArray.from_strings(str(path.relative_to(root)) for path in files)
        file = np.repeat(np.arange(len(files), dtype=np.int32), counts)
        names = [f"row {n}" for count in counts for n in range(count)]
        columns = {name: self._make_column(name, root, paths, file, every) for name in self.fields}

        def where(i: int) -> str:
            return f"{files[file[i]]}:{names[i]}"

        values = {name: _concatenate(every, column) for name, column in self.values.items()}
        chosen = self._read_labels(every, where, len(names))
        return build(root, names, *chosen, columns=columns, values=values)

    def _unpack(self, index: Index, progress: Progress) -> Index:
        """Return the index with unpacked columns, if the source is to unpack them."""
        columns = dict(index.columns)
        for name, column in index.columns.items():
            if isinstance(column, RowGroupColumn) and self._is_to_unpack(column):
                columns[name] = unpack_row_groups(column, progress)
        return replace(index, columns=columns)

    def _is_to_unpack(self, column: RowGroupColumn) -> bool:
        if self.unpack == "auto":
            return count_row_groups(column) > self.row_groups
        return self.unpack == "always"

    def _make_column(
        self, name: str, root: str, paths: StringArray, file: NDArray[np.int32], every: list[_Rows]
    ) -> Column:
        if every[0].groups:
            group, row = np.concatenate([g for rows in every for g in rows.groups], axis=1)
            places = (Path(root) / paths[n] for n in range(len(paths)))
            sizes = np.array([path.stat().st_size for path in places], np.int64)
            column = self.fields[name]
            return RowGroupColumn(root, paths, sizes, column, file, group, row, self.row_groups)
        parts = [part for rows in every for part in rows.spans.get(name, [])]
        offset, length = np.concatenate(parts, axis=1)
        return SpanColumn(root, paths, file, offset, length)

    def _read_labels(
        self, every: list[_Rows], where: labels.Where, count: int
    ) -> tuple[NDArray[np.int64], list[str]]:
        if self.label is None:
            return labels.make_unlabelled(count)
        parts = [part for rows in every for part in rows.others[self.label]]
        joined = arrow_columns.join_labels(parts)
        if isinstance(joined, list):
            return labels.from_texts(joined, where)
        numbers, classes = labels.from_numbers(joined, where)
        names = every[0].class_names
        return numbers, names if len(names) >= len(classes) else classes

    def read(self, path: Path) -> _Rows:
        rows = _Rows()
        with name_shard(path):
            read = self._read_parquet if path.suffix == _PARQUET else self._read_arrow
            read(path, rows)
        return rows

    def _read_arrow(self, path: Path, rows: _Rows) -> None:
        for batch in arrow_columns.iter_batches(path):
            arrow_columns.check_columns(batch.rows.schema, self._columns)
            for name, column in self.fields.items():
                span = np.stack(arrow_columns.locate_images(batch, column))
                rows.spans.setdefault(name, []).append(span)
            self._add(rows, batch.rows)

    def _read_parquet(self, path: Path, rows: _Rows) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(path) as table:
                arrow_columns.check_columns(table.schema_arrow, self._columns)
                for number in range(table.num_row_groups):
                    names = list(dict.fromkeys(self._others))
                    group = table.read_row_group(number, names, use_threads=False)
                    count = table.metadata.row_group(number).num_rows
                    places = np.stack([np.full(count, number), np.arange(count)])
                    rows.groups.append(places.astype(np.int32))
                    self._add(rows, group.combine_chunks(), count, table.schema_arrow)
        except (pa.ArrowException, OSError) as e:
            raise Damaged(f"no .parquet that can be read: {str(e).splitlines()[0]}") from e

    @property
    def _others(self) -> list[str]:
        return [*([self.label] if self.label else []), *self.values.values()]

    @property
    def _columns(self) -> list[str]:
        return [*self.fields.values(), *self._others]

    def _add(self, rows: _Rows, table: Any, count: int | None = None, schema: Any = None) -> None:
        """Add the labels and values of some rows."""
        if self.label is not None:
            label = arrow_columns.read_labels(_one(table.column(self.label)), self.label)
            rows.others.setdefault(self.label, []).append(label)
            rows.class_names = arrow_columns.read_class_names(schema or table.schema, self.label)
        for column in dict.fromkeys(self.values.values()):
            numbers = arrow_columns.read_numbers(_one(table.column(column)), column)
            rows.others.setdefault(f"value {column}", []).append(numbers)
        rows.count += table.num_rows if count is None else count


def _one(column: Any) -> Any:
    """Return a column as one array."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _concatenate(every: Sequence[_Rows], column: str) -> NDArray[Any]:
    parts = [part for rows in every for part in rows.others[f"value {column}"]]
    return np.concatenate(parts)
