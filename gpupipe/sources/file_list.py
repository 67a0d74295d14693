"""file_list: one sample per row of a manifest: a .txt, .csv, .tsv, .jsonl or .parquet file."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator

from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.list_annotations import annotate_index
from gpupipe.dataset.list_columns import (
    BadBoxes,
    Fields,
    ListColumn,
    find_label,
    list_annotation_specs,
    split_fields,
)
from gpupipe.dataset.paths import (
    ManifestFiles,
    check_manifest_path,
    explain_os_error,
    read_files,
    resolve_root,
)
from gpupipe.dataset.source import Progress, Source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError
from gpupipe.formats import manifest
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.schema.field_types import expand_home

_MAIN = "image"


class FileList(Source):
    """The files that a manifest lists, one sample per row, in the order of the rows.

    Several rows may list the same path. Labels that are whole numbers of at least 0 stay as they
    are: class 7 is called "7". Labels that are names are numbered in sorted order. Without labels,
    there are no classes.

    The text formats are UTF-8; other bytes in paths are kept as they are. They are:

    - .txt: one path per line, optionally followed by a TAB or spaces and a label. Blank lines and
      lines that begin with # are left out.
    - .csv, .tsv: the first line names the columns.
    - .jsonl: a JSON object in each line, whose keys are the columns.
    - .parquet: needs pyarrow.

    Attributes:
        file: The manifest: a .txt, .csv, .tsv, .jsonl or .parquet file.
        root: The folder that paths are relative to, by default the manifest's folder. ~ stands for
            the home directory. Each path must lie in this folder as it is written ('a/../b' counts
            as 'b'); symbolic links are followed. `gpupipe check` looks for
            missing files; loading meets them one by one.
        path: Name of the column with paths. Not for .txt.
        label: Name of the column with labels. Not for .txt. A table with the column `path` alone
            has no labels. null means that labels are not read. Write null for a .txt without labels
            whose paths hold spaces, and for a table without labels that has further columns.
        fields: Further columns with paths: {FIELD: COLUMN}, where FIELD is the name in a batch,
            such as {mask: mask_path}. The field of `path` is "image". A column of lists of a .jsonl
            or .parquet is {column: objects.bbox, kind: boxes, format: xywh}, or goes with the
            boxes: {column: objects.category, with: boxes}. Points are {column: objects.keypoints,
            kind: points, format: xyv, count: 17, with: boxes}.
        values: The names of further columns with numbers. A batch has each under the same name. A
            column is int64 if all of its numbers are whole, else float64.
        bad_boxes: error: an image with a box that has no area, or with numbers out of range, is a
            broken sample. drop: such boxes are left out.
    """

    name: ClassVar[str] = "file_list"
    format: ClassVar[int] = 2

    file: Annotated[Path, AfterValidator(check_manifest_path)]
    root: Annotated[Path, AfterValidator(expand_home)] | None = None
    path: str = "path"
    label: str | None = "label"
    fields: Fields = Field(default={})
    values: tuple[str, ...] = ()
    bad_boxes: BadBoxes = "error"

    @model_validator(mode="after")
    def _columns_are_of_tables(self) -> "FileList":
        named = [
            option
            for option in ("path", "label", "fields", "values")
            if option in self.model_fields_set and getattr(self, option) is not None
        ]
        if manifest.get_suffix(self.file) == ".txt" and named:
            raise ValueError(f"a .txt has no columns: leave out {' and '.join(named)}")
        if self._lists and manifest.get_suffix(self.file) not in manifest.WITH_LISTS:
            raise ValueError(
                f"columns of lists ({', '.join(self._lists)}) need a .jsonl or .parquet: "
                f"{self.file.name} has none"
            )
        return self

    @property
    def _lists(self) -> dict[str, ListColumn]:
        return split_fields(self.fields)[1]

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return (_MAIN, *split_fields(self.fields)[0]), self.values

    def annotation_specs(self) -> dict[str, Spec]:
        return list_annotation_specs(self.fields, _MAIN)

    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the rows of the manifest.

        Raises:
            DataError: The manifest is missing or wrong. The message names FILE:LINE if one line
                is wrong.
        """
        try:
            self.file.stat()
        except OSError as e:
            reason = explain_os_error(e, "set data.file to the list of the samples")
            raise DataError(f"{self.file}: {reason}") from e
        root = resolve_root(self.root or self.file.parent)
        key = [str(self.file.resolve()), str(root), self._is_sure]
        return self.load_or_build([self.file], lambda: self._read(progress), key)

    @property
    def _is_sure(self) -> bool:
        """Whether the YAML sets `label`. If so, the column must exist."""
        return "label" in self.model_fields_set

    def find_rows_in_list(self) -> Callable[[int], str]:
        read = cache(lambda: self._read_files(ignore_progress))
        return lambda row: read().where(row)

    def _read(self, progress: Progress) -> Index:
        files = self._read_files(progress)
        paths = {name: StringArray.from_strings(paths) for name, paths in files.paths.items()}
        root = str(files.root)
        index = build(
            root,
            paths[_MAIN],
            files.labels,
            files.classes,
            columns={name: FileColumn(root, texts) for name, texts in paths.items()},
            values=files.values,
        )
        has_label, drops_bad = find_label(self) is not None, self.bad_boxes == "drop"
        return annotate_index(index, self._lists, files.lists, files.where, has_label, drops_bad)

    def _read_files(self, progress: Progress) -> ManifestFiles:
        columns = {_MAIN: self.path} | split_fields(self.fields)[0]
        values = dict(zip(self.values, self.values, strict=True))
        lists = {name: column.place for name, column in self._lists.items()}
        wanted = ManifestColumns(columns, find_label(self), self._is_sure, values, lists=lists)
        return read_files(self.file, self.root, wanted, progress)
