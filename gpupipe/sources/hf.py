"""hf: data sets of Hugging Face, as save_to_disk writes them, or as Parquet files of the hub."""

import os
from collections import defaultdict
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
from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.list_annotations import annotate_index
from gpupipe.dataset.list_columns import (
    LABELS,
    BadBoxes,
    Fields,
    find_label,
    list_annotation_specs,
    split_fields,
)
from gpupipe.dataset.shards import name_shard
from gpupipe.dataset.source import Progress, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, counted
from gpupipe.formats import arrow_columns
from gpupipe.formats.arrow_values import LabelsAndValues
from gpupipe.runtime.installation import require_extra
from gpupipe.schema.field_types import WHOLE, expand_home
from gpupipe.sources.helpers.hub_files import find_hub_files, read_class_names
from gpupipe.sources.helpers.row_groups import RowGroupColumn, count_row_groups, unpack_row_groups

_PARQUET = ".parquet"


@dataclass
class _Rows:
    """What the source reads from one file: the labels and values of its rows, and their places.

    Attributes:
        others: The labels and values of the rows.
        class_names: The names of the classes, if the label is a ClassLabel; else [].
        spans: For an Arrow file. Maps the name of each field to a list with one array per record
            batch, int64 (2, n): the byte offsets and the byte lengths of the batch's n images.
        groups: For a Parquet file. One array per row group, int32 (2, n) for its n rows: the number
            of the row group, n times, and the number of each row in the group.
        count: The number of rows in the file.
    """

    others: LabelsAndValues
    class_names: list[str] = field(default_factory=list)
    spans: dict[str, list[NDArray[np.int64]]] = field(default_factory=lambda: defaultdict(list))
    groups: list[NDArray[np.int32]] = field(default_factory=list)
    count: int = 0


class Hf(FileSource):
    """The rows of a Hugging Face data set, with image files in their columns. Needs pyarrow.

    Images in Arrow files, as Dataset.save_to_disk writes them, are read where they are. Parquet
    files, as the hub has them, are read by whole row groups, or their images are written once to
    the cache folder (see `unpack`). The package `datasets` is not needed.

    Attributes:
        root: The folder of the data set. ~ stands for the home directory.
        split: The split, such as "validation"; by default "train", or the only one.
        fields: The column with the image files of each field: {FIELD: COLUMN}, where FIELD is the
            name in a batch. The first field is the one that steps work on. A column of lists is
            {column: objects.bbox, kind: boxes, format: xywh}, or goes with the boxes:
            {column: objects.category, with: boxes}. Points are {column: objects.keypoints,
            kind: points, format: xyv, count: 17, with: boxes}.
        label: The column of labels, whole numbers or names; null if there are none. A column of
            the type ClassLabel also names the classes.
        values: Columns of numbers: {VALUE: COLUMN}, where VALUE is the name in a batch.
        bad_boxes: error: an image with a box that has no area, or with numbers out of range, is a
            broken sample. drop: such boxes are left out.
        row_groups: How many row groups of Parquet files each process keeps in memory. Shuffling is
            not limited to these: shuffled samples come from all row groups of the split.
        unpack: Whether the first load writes the images of Parquet files to the cache folder, which
            takes as much room as the images. "always": it does. "auto": it does if there are more
            row groups than `row_groups`. "never": a row group that is not in memory is read
            whenever one of its samples is due.
    """

    name: ClassVar[str] = "hf"
    inflates: ClassVar[bool] = True
    not_indexed: ClassVar[frozenset[str]] = FileSource.not_indexed | {"row_groups", "unpack"}

    root: Annotated[Path, AfterValidator(expand_home)]
    split: str | None = None
    fields: Fields = Field(default={"image": "image"}, min_length=1)
    label: str | None = "label"
    values: dict[str, str] = Field(default={})
    bad_boxes: BadBoxes = "error"
    row_groups: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 64
    unpack: Literal["auto", "always", "never"] = "auto"

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(split_fields(self.fields)[0]), list(self.values)

    def annotation_specs(self) -> dict[str, Spec]:
        return list_annotation_specs(self.fields)

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
        images, lists = split_fields(self.fields)
        columns = {name: self._make_column(name, root, paths, file, every) for name in images}

        def where(i: int) -> str:
            return f"{files[file[i]]}:{names[i]}"

        texts = labels.join_labels([part for rows in every for part in rows.others.labels])
        values = every[0].others.join_values(rows.others for rows in every[1:])
        numbers, classes = labels.number_classes(texts, len(names), where)
        if isinstance(texts, np.ndarray) and len(every[0].class_names) >= len(classes):
            classes = every[0].class_names
        index = build(root, names, numbers, classes, columns=columns, values=values)
        with name_shard(files[0]):
            joined = every[0].others.join_lists(rows.others for rows in every[1:])
        return annotate_index(
            index,
            lists,
            joined,
            where,
            has_label=find_label(self) is not None,
            drops_bad=self.bad_boxes == "drop",
            class_names=every[0].class_names,
        )

    def _unpack(self, index: Index, progress: Progress) -> Index:
        """Return the index with columns that are unpacked, where the option `unpack` asks for it.

        The images of an unpacked column are in the cache folder, and not in Parquet files.
        """
        columns = dict(index.columns)
        for name, column in index.columns.items():
            assert isinstance(column, RowGroupColumn)
            if self.unpack == "always" or (
                self.unpack == "auto" and count_row_groups(column) > self.row_groups
            ):
                columns[name] = unpack_row_groups(column, progress)
        return replace(index, columns=columns)

    def _make_column(
        self, name: str, root: str, paths: StringArray, file: NDArray[np.int32], every: list[_Rows]
    ) -> Column:
        if every[0].groups:
            group, row = np.concatenate([g for rows in every for g in rows.groups], axis=1)
            places = (Path(root) / paths[n] for n in range(len(paths)))
            sizes = np.array([path.stat().st_size for path in places], np.int64)
            column = split_fields(self.fields)[0][name]
            return RowGroupColumn(
                root, paths, sizes, column, file, group, row, self.row_groups, self.byte_limit
            )
        parts = [part for rows in every for part in rows.spans[name]]
        offset, length = np.concatenate(parts, axis=1)
        return SpanColumn(root, paths, file, offset, length)

    def read(self, path: Path) -> _Rows:
        lists = {name: column.place for name, column in split_fields(self.fields)[1].items()}
        rows = _Rows(LabelsAndValues(find_label(self), self.values, lists))
        with name_shard(path):
            read = self._read_parquet if path.suffix == _PARQUET else self._read_arrow
            read(path, rows)
        return rows

    def _read_arrow(self, path: Path, rows: _Rows) -> None:
        for batch in arrow_columns.iter_batches(path):
            self._check_columns(batch.rows.schema, rows)
            for name, column in split_fields(self.fields)[0].items():
                rows.spans[name].append(np.stack(arrow_columns.locate_images(batch, column)))
            rows.others.add(batch.rows)
            rows.count += batch.rows.num_rows

    def _read_parquet(self, path: Path, rows: _Rows) -> None:
        with arrow_columns.open_parquet(path) as table:
            self._check_columns(table.schema_arrow, rows)
            columns = rows.others.find_columns(table.schema_arrow.names)
            for number in range(table.num_row_groups):
                rows.others.add(table.read_row_group(number, columns, use_threads=False))
                count = table.metadata.row_group(number).num_rows
                locations = np.stack([np.full(count, number), np.arange(count)])
                rows.groups.append(locations.astype(np.int32))
                rows.count += count

    def _check_columns(self, schema: Any, rows: _Rows) -> None:
        images, lists = split_fields(self.fields)
        others = rows.others.find_columns(schema.names)
        arrow_columns.check_columns(schema, [*images.values(), *others])
        if rows.others.label is not None:
            rows.class_names = read_class_names(schema, rows.others.label)
        elif LABELS in lists:
            rows.class_names = read_class_names(schema, lists[LABELS].column)
