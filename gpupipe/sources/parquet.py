"""parquet: image files inside the columns of .parquet files, as Hugging Face's hub has them."""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import RawIOBase
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from gpupipe.dataset.index import Index
from gpupipe.dataset.index_cache import write_parts, write_parts_beside
from gpupipe.dataset.labels import join_labels
from gpupipe.dataset.list_annotations import AnnotatedShards
from gpupipe.dataset.list_columns import ListColumn, check_fields, find_label, split_fields
from gpupipe.dataset.npy_fields import ArrayFormat, Shape, locate_arrays, read_header
from gpupipe.dataset.shards import ByteRanges, ShardFile, array_spec, name_shard
from gpupipe.dataset.source import FilePart
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, NoSamplesError
from gpupipe.formats import DamagedError, arrow_columns, check_size
from gpupipe.formats.arrow_values import LabelsAndValues
from gpupipe.formats.npy import NpyHeader
from gpupipe.formats.parquet_footer import (
    MAGIC,
    Footer,
    RowGroup,
    check_row_group,
    read_footer,
    read_row_groups,
)
from gpupipe.runtime.installation import require_extra

_ROWS_AT_ONCE = 64
_ALIGNMENT = 64
"""The headers of .npy files are multiples of this, so the numbers of arrays are aligned, too."""


class ArrayColumn(ArrayFormat):
    """Describes a field whose samples are .npy files in a column.

    Attributes:
        column: The column.
        dtype: Dtype that the array of every sample must have.
        shape: Shape that the array of every sample must have, with null for an axis along which
            samples may differ.
        layout: A letter for each axis, such as HWC. By default L, HW, CHW or CDHW.
    """

    column: str = Field(min_length=1)
    shape: Shape


class Parquet(AnnotatedShards):
    """The rows of .parquet files, with image files or arrays in their columns. Needs pyarrow.

    A column holds bytes, or structs with a part `bytes`, as the data sets of Hugging Face have
    them. Parquet compresses its pages, so no image can be read in place. Instead, the images of a
    shard are written once to a file in the cache folder, which takes as much room as the images.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
        fields: The column with the image files of each field: {FIELD: COLUMN}, where FIELD is the
            name in a batch. The first field is the one that steps work on. A column of lists is
            {column: objects.bbox, kind: boxes, format: xywh}, or goes with the boxes:
            {column: objects.category, with: boxes}. Points are {column: objects.keypoints,
            kind: points, format: xyv, count: 17, with: boxes}. Arrays, as .npy files in a column,
            are {column: volume, dtype: float32, shape: [3, null, null]}.
        label: The column of labels, whole numbers or names; null if there are none.
        values: Columns of numbers: {VALUE: COLUMN}, where VALUE is the name in a batch. A value is
            int64 if all of its numbers are whole, else float64.
        classes: The names of the classes, if labels are numbers: a list, or the path of a file with
            a name on each line. Label 0 is the first. Labels that are names get their numbers from
            it, too. null, the default: names are numbered in sorted order.
        bad_boxes: error: an image with a box that has no area, or with numbers out of range, is a
            broken sample. drop: such boxes are left out.
    """

    name: ClassVar[str] = "parquet"
    inflates: ClassVar[bool] = True
    not_indexed: ClassVar[frozenset[str]] = AnnotatedShards.not_indexed - {
        "max_bytes",
        "max_pixels",
    }

    fields: Annotated[dict[str, str | ListColumn | ArrayColumn], AfterValidator(check_fields)] = (
        Field(default={"image": "image"}, min_length=1)
    )
    label: str | None = "label"
    values: dict[str, str] = Field(default={})

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(split_fields(self.fields)[0]), list(self.values)

    def specs(self) -> dict[str, Spec]:
        arrays = {
            name: array_spec(field.dtype, field.shape, layout=field.layout)
            for name, field in self._formats.items()
        }
        return dict.fromkeys(self._columns, Spec()) | arrays

    @property
    def _columns(self) -> dict[str, str]:
        """The column of each field of image files or arrays."""
        formats, fields = self._formats, split_fields(self.fields)[0]
        return {n: formats[n].column if n in formats else str(fields[n]) for n in fields}

    @property
    def _formats(self) -> dict[str, ArrayColumn]:
        """The fields of arrays."""
        return {name: f for name, f in self.fields.items() if isinstance(f, ArrayColumn)}

    def read(self, path: Path) -> list[ShardFile]:
        require_extra("parquet", ("pyarrow",), f"reading {path}", DataError)
        with name_shard(path), arrow_columns.open_parquet(path) as table:
            # The column of arrays matters too: only these are aligned.
            padded = [n for n, name in enumerate(self._columns) if name in self._formats]
            key = ("parquet", list(self._columns.values()), *padded)
            reason = f"the images of {path} are unpacked there"
            return [self._unpack(path, table, write_parts(path, key, reason))]

    def index_file(self, path: Path) -> Index:
        return self.index_part(path, 0, 0)

    def index_part(self, path: Path, first: int, group: int) -> Index:
        require_extra("parquet", ("pyarrow",), f"reading {path}", DataError)
        with name_shard(path), arrow_columns.open_parquet(path) as table:
            part = self._unpack(path, table, write_parts_beside(path), first, group)
        if not part.names:
            raise NoSamplesError(f"{path}: no sample in 1 shard: {self.explain_empty()}")
        return self.join([path], [[part]])

    def cut_file(self, file: RawIOBase, max_bytes: float) -> list[FilePart]:
        require_extra("parquet", ("pyarrow",), "reading .parquet", DataError)
        with arrow_columns.open_parquet(file) as table:
            _, columns = self._choose_columns(table)
            footer = read_footer(file)
        size, images = file.seek(0, io.SEEK_END), set(self._columns.values())
        parts, taken = list[list[int]](), 0
        for number, group in enumerate(footer.groups):
            if not group.rows:
                continue
            chunks = group.chunks
            if (
                group.rows < 0
                or not chunks
                or any(not len(MAGIC) <= c.begin <= c.end <= size for c in chunks)
            ):
                raise DamagedError(f"row group {number} is not in the file")
            check_row_group(group, number, images, self.byte_limit)
            used = [chunk for chunk in chunks if chunk.column in columns]
            need = sum(
                c.end - c.begin + (max(c.inflated, 0) if c.column in images else 0) for c in used
            )
            # Row groups after an empty one are another part, so that messages count all of them.
            if not parts or parts[-1][-1] + 1 < number or taken + need > max_bytes:
                parts.append([])
                taken = 0
            parts[-1].append(number)
            taken += need
        return [
            self._create_part(footer, [footer.groups[n] for n in part], part[0], columns)
            for part in parts
        ]

    def _create_part(
        self, footer: Footer, groups: list[RowGroup], number: int, columns: list[str]
    ) -> FilePart:
        """Return a part of a file with some of its row groups, of which `number` is the first."""
        chunks, images = [c for group in groups for c in group.chunks], self._columns.values()
        shift = min(c.begin for c in chunks) - len(MAGIC)
        end = max(c.end for c in chunks) - shift
        return FilePart(
            sum(group.rows for group in groups),
            number,
            [(c.begin, c.end) for c in chunks if c.column in columns],
            shift,
            [(0, MAGIC), (end, footer.pack(groups, shift))],
            sum(max(c.inflated, 0) for c in chunks if c.column in images),
        )

    def _choose_columns(self, table: Any) -> tuple[LabelsAndValues, list[str]]:
        """Return what collects labels, values and lists of an open file, and all columns to read.

        Raises ValueError if the file lacks one of them.
        """
        lists = split_fields(self.fields)[1]
        others = LabelsAndValues(
            find_label(self), self.values, {name: c.place for name, c in lists.items()}
        )
        names = table.schema_arrow.names
        columns = list(dict.fromkeys([*self._columns.values(), *others.find_columns(names)]))
        arrow_columns.check_columns(table.schema_arrow, columns)
        return others, columns

    def _unpack(
        self,
        path: Path,
        table: Any,
        written: AbstractContextManager[tuple[Path, BinaryIO]],
        first: int = 0,
        first_group: int = 0,
    ) -> ShardFile:
        """Write the images and arrays of a shard to a file.

        Args:
            path: The Parquet file.
            table: The same file, opened with pyarrow.
            written: Yields the path of the file to write, and the open file.
            first: The number of its first row, for names and messages.
            first_group: The number of its first row group, for messages.

        Returns:
            The samples of the shard: their names, labels and values, and where the new file has
            their images.
        """
        images, formats = self._columns, self._formats
        others, columns = self._choose_columns(table)
        spans: dict[str, list[tuple[int, int]]] = {name: [] for name in images}
        headers: dict[str, list[NpyHeader]] = {name: [] for name in formats}
        with path.open("rb") as opened:
            for number, group in enumerate(read_row_groups(opened), first_group):
                check_row_group(group, number, images.values(), self.byte_limit)
        with written as (unpacked, file):
            for rows in arrow_columns.iter_rows(table, columns, _ROWS_AT_ONCE, first_group):
                others.add(rows)
                for name, column in images.items():
                    for image in arrow_columns.find_bytes(rows.column(column), column):
                        content = image.as_buffer()
                        row = f"row {first + len(spans[name])}"
                        check_size(content.size, self.byte_limit, f"{row}: ")
                        if name in formats:
                            headers[name].append(read_header(row, content))
                            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                        spans[name].append((file.tell(), file.write(content)))
        fields = {
            name: ByteRanges(*np.array(parts, np.int64).reshape(-1, 2).T)
            for name, parts in spans.items()
        }
        for name, expected in formats.items():
            rows = [f"row {first + n}" for n in range(len(headers[name]))]
            begins = fields[name].offset.tolist()
            fields[name] = locate_arrays(rows, begins, headers[name], expected)
        names = [f"{path}:row {first + n}" for n in range(len(next(iter(spans.values()))))]
        if not names:
            return ShardFile(names, fields)
        found = join_labels(others.labels), others.join_values()
        return ShardFile(names, fields, *found, unpacked, others.join_lists())
