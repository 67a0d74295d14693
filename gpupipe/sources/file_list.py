"""file_list: the samples that a manifest lists, a row each: .txt, .csv, .tsv or .parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator

from gpupipe.dataset import index_cache, labels
from gpupipe.dataset.index import FileColumn, Index, StringArray, build
from gpupipe.dataset.manifest_paths import folder, inside, listing
from gpupipe.dataset.source import Progress, Source, check_names, quiet
from gpupipe.errors import DataError
from gpupipe.formats import manifest
from gpupipe.formats.manifest import Wanted
from gpupipe.pipeline.step import Spec
from gpupipe.schema.field_types import expanded

_MAIN = "image"
_FORMAT = 2
"""Part of the cache's key: to be raised when the same manifest gives another index than before."""


class FileList(Source):
    """The files that the manifest `file` lists, a sample a row, in the order of the rows; a path
    may stand in several of them.

    file: .txt (a path a line, behind it a TAB or spaces and a label, or nothing; blank lines and
    lines that begin with # are left out), .csv or .tsv (its first line names the columns), or
    .parquet (needs pyarrow). UTF-8; other bytes in paths are kept as they are. root: what relative
    paths are relative to, by default the manifest's folder; ~ stands for the home directory. Every
    path must lie in it, in its letters: 'a/../b' is read as 'b', links are followed. Whether the
    files exist is seen when they are loaded. path, label: the names of the columns (not of .txt). A
    table with the column `path` alone has no labels; `label: null` says that there are none to be
    read: neither in a table's other columns, nor in a .txt whose paths hold spaces. fields: further
    columns with paths, and what their files are called in a batch, beside the "image" of `path`:
    {mask: mask_path}. values: further columns with numbers, to be delivered with each sample under
    their names: int64 where all are whole, else float64.

    Labels are whole numbers of at least 0, which stay as they are (class 7 is called "7"), or
    names, which are numbered in sorted order. Without labels every label is 0, of the one class
    "0".
    """

    name: ClassVar[str] = "file_list"

    file: Annotated[Path, AfterValidator(listing)]
    root: Annotated[Path, AfterValidator(expanded)] | None = None
    path: str = "path"
    label: str | None = "label"
    fields: dict[str, str] = Field(default={})
    values: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _columns_are_of_tables(self) -> FileList:
        named = [
            option
            for option in ("path", "label", "fields", "values")
            if option in self.model_fields_set and getattr(self, option) is not None
        ]
        if manifest.suffix(self.file) == ".txt" and named:
            raise ValueError(f"a .txt has no columns: leave out {' and '.join(named)}")
        return self

    @model_validator(mode="after")
    def _names_are_free(self) -> FileList:
        check_names((_MAIN, *self.fields), self.values)
        return self

    def specs(self) -> dict[str, Spec]:
        return {name: Spec() for name in (_MAIN, *self.fields)}

    def index(self, progress: Progress = quiet) -> Index:
        """The rows of the manifest. Raises DataError, with FILE:LINE where a line is to blame."""
        try:
            self.file.stat()
            root = folder(self.root or self.file.parent)
            sure = "label" in self.model_fields_set
            saved = index_cache.place(
                self.name, _FORMAT, str(self.file.resolve()), str(root), self.model_dump(), sure
            )
            return index_cache.cached(saved, [self.file], lambda: self._read(root, sure, progress))
        except FileNotFoundError as e:
            raise DataError(
                f"{self.file}: no such file: set data.file to the list of the samples"
            ) from e
        except OSError as e:
            raise DataError(f"{e.filename or self.file}: cannot be read: {e.strerror or e}") from e

    def _read(self, root: Path, sure: bool, progress: Progress) -> Index:
        wanted = Wanted(
            {_MAIN: self.path} | self.fields,
            self.label,
            sure,
            dict(zip(self.values, self.values, strict=True)),
        )
        rows = manifest.read(self.file, wanted, lambda count: progress("reading", count, None))
        if not len(rows):
            raise DataError(f"{self.file}: no rows: list at least one file, a line each")
        progress("reading", len(rows), None)
        roots = [str((self.root or self.file.parent).absolute()), str(root)]
        names = inside(rows, rows.paths[_MAIN], roots)
        others = {
            name: FileColumn(str(root), StringArray.of(inside(rows, rows.paths[name], roots)))
            for name in self.fields
        }
        numbers, classes = (
            labels.of_texts(rows.labels, rows.where) if rows.labels else labels.none(len(rows))
        )
        texts = StringArray.of(names)
        return build(
            str(root),
            texts,
            numbers,
            classes,
            columns={_MAIN: FileColumn(str(root), texts), **others},
            values=rows.values,
        )
