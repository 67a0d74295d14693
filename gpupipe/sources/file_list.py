"""file_list: the samples that a manifest lists, a row each: .txt, .csv, .tsv or .parquet."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, TextIO

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, model_validator

from gpupipe import index_file
from gpupipe.cachedir import cache_dir
from gpupipe.errors import DataError, counted, did_you_mean, shown
from gpupipe.index import Index, build
from gpupipe.parameters import expanded
from gpupipe.source import Progress, Source, quiet

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SUFFIXES = (".txt", *_DELIMITERS, ".parquet")
_ODD = re.compile(r"\0|(?:^|/)\.{0,2}(?:/|$)")
"""A path that is not plainly NAME/NAME/...: with NUL, or with a part that is '', '.' or '..'."""
_LONGEST_PATH = 4095
_WHOLE = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_MOST_CLASSES = 10_000_000
"""Every number up to the largest label is a class with a name: a row's id in the label's place must not fill the memory."""
_PROGRESS_ROWS = 100_000
_FORMAT = 1
"""Part of the cache's key: to be raised when the same manifest gives another index than before."""


def _suffix(file: Path) -> str:
    return file.suffix.lower()


def _manifest(path: Path) -> Path:
    if _suffix(path) not in _SUFFIXES:
        raise ValueError(f"{path} should end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}: the ending says what the file's format is")
    if "\0" in str(path):
        raise ValueError("a NUL byte, which no path holds")
    return expanded(path)


class FileList(Source):
    """The files that the manifest `file` lists, a sample a row, in the order of the rows; a path may stand in several of them.

    file: .txt (a path a line, behind it a TAB or spaces and a label, or nothing; blank lines and lines that begin with # are left out), .csv or
      .tsv (its first line names the columns), or .parquet (needs pyarrow). UTF-8; other bytes in paths are kept as they are.
    root: what relative paths are relative to, by default the manifest's folder; ~ stands for the home directory. Every path must lie in it, in
      its letters: 'a/../b' is read as 'b', links are followed. Whether the files exist is seen when they are loaded.
    path, label: the names of the columns (not of .txt). A table with the column `path` alone has no labels; `label: null` says that
      there are none to be read: neither in a table's other columns, nor in a .txt whose paths hold spaces.

    Labels are whole numbers of at least 0, which stay as they are (class 7 is called "7"), or names, which are numbered in sorted order.
    Without labels every label is 0, of the one class "0".
    """

    name: ClassVar[str] = "file_list"

    file: Annotated[Path, AfterValidator(_manifest)]
    root: Annotated[Path, AfterValidator(expanded)] | None = None
    path: str = "path"
    label: str | None = "label"

    @model_validator(mode="after")
    def _columns_are_of_tables(self) -> FileList:
        named = [option for option in ("path", "label") if option in self.model_fields_set and getattr(self, option) is not None]
        if _suffix(self.file) == ".txt" and named:
            raise ValueError(f"a .txt has no columns: leave out {' and '.join(named)}")
        return self

    def index(self, progress: Progress = quiet) -> Index:
        """The rows of the manifest. Raises DataError, with FILE:LINE where a line is to blame."""
        try:
            state, started = index_file.file_state(self.file), time.time()
            root = _folder(self.root or self.file.parent)
            saved = cache_dir() / "index" / f"{self._key(root)}.idx"
            index = index_file.open_saved(saved)
            if index is None or index.root != str(root) or index.extra.get("manifest") != state:
                index = self._read(root, state, progress)
                index_file.keep(index, saved, max(state[:2]), started)
        except FileNotFoundError as e:
            raise DataError(f"{self.file}: no such file: set data.file to the list of the samples") from e
        except OSError as e:
            raise DataError(f"{e.filename or self.file}: cannot be read: {e.strerror or e}") from e
        return index

    def _key(self, root: Path) -> str:
        parts = [self.name, _FORMAT, str(self.file.resolve()), str(root), str(self.root), self.path, self.label, "label" in self.model_fields_set]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def _read(self, root: Path, state: list[int], progress: Progress) -> Index:
        rows = self._rows(progress)
        if not rows.paths:
            raise DataError(f"{self.file}: no rows: list at least one file, a line each")
        progress("reading", len(rows.paths), None)
        paths = _inside(rows, [str((self.root or self.file.parent).absolute()), str(root)])
        labels, classes = _numbered(rows)
        return build(str(root), paths, labels, classes, {"manifest": state})

    def _rows(self, progress: Progress) -> _Rows:
        if _suffix(self.file) == ".parquet":
            return _parquet(self)
        with open(self.file, encoding="utf-8-sig", errors="surrogateescape", newline="" if _suffix(self.file) in _DELIMITERS else "\n") as f:
            return _text(self, f, progress) if _suffix(self.file) == ".txt" else _table(self, f, progress)

    def places(self, columns: Sequence[str], where: str) -> tuple[int, int | None]:
        """Where the columns of paths and of labels stand among `columns`; None: no labels. `where` begins the DataError for one that is missing."""
        path = _place(columns, self.path, "path", where, "")
        if self.label is None or ("label" not in self.model_fields_set and len(columns) == 1):
            return path, None
        return path, _place(columns, self.label, "label", where, ", or data.label=null where there are no labels")


@dataclass
class _Rows:
    """What a manifest says: a path and a label a row, both as text; labels is empty where there are none.

    lines: of a text file, where each row begins, counted from 1; empty: rows have no lines.
    """

    file: Path
    paths: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))

    def where(self, row: int) -> str:
        """How a message names the row: FILE:LINE, or the row's number, from 1."""
        return f"{self.file}:{self.lines[row]}" if self.lines else f"{self.file}: row {row + 1:,}"

    def add(self, line: int, path: str, label: str | None, progress: Progress) -> None:
        self.lines.append(line)
        self.paths.append(path)
        if label is not None:
            self.labels.append(label)
        if len(self.paths) % _PROGRESS_ROWS == 0:
            progress("reading", len(self.paths), None)


def _place(columns: Sequence[str], name: str, option: str, where: str, otherwise: str) -> int:
    found = [i for i, column in enumerate(columns) if column == name]
    if not found:
        known = did_you_mean(name, {shown(c).strip("'") for c in columns})
        raise DataError(f"{where}: no column '{name}'{known}; set data.{option} to the column's name (the columns are named by the header){otherwise}")
    if len(found) > 1:
        raise DataError(f"{where}: {len(found)} columns are called '{name}': rename all but one")
    return found[0]


def _text(source: FileList, f: TextIO, progress: Progress) -> _Rows:
    rows = _Rows(source.file)
    for number, line in enumerate(f, 1):
        bare = line.strip(" \t\r\n")
        if not bare or bare[0] == "#":
            continue
        path, label = (bare, None) if source.label is None else _split(bare, f"{source.file}:{number}")
        if rows.paths and (label is None) == bool(rows.labels):
            there = "no label" if label is None else "a label"
            raise DataError(f"{source.file}:{number}: {there}, other than in line {rows.lines[0]}: label every line, or none")
        rows.add(number, path, label, progress)
    return rows


def _split(line: str, where: str) -> tuple[str, str | None]:
    """The path and the label of a line. A TAB separates them beyond doubt; behind mere spaces, the rest of a path must not pass for a label."""
    path, tab, label = line.rpartition("\t")
    if tab:
        return path.rstrip(" \t"), label.strip(" ")
    path, space, label = line.rpartition(" ")
    if space and ("/" in label or "." in label):
        raise DataError(f"{where}: {shown(label)} cannot be a label: write a TAB before the label, or set data.label=null where lines are paths alone")
    return (path.rstrip(" "), label) if space else (line, None)


def _table(source: FileList, f: TextIO, progress: Progress) -> _Rows:
    rows = _Rows(source.file)
    reader = csv.reader(f, delimiter=_DELIMITERS[_suffix(source.file)], strict=True)
    try:
        records = _records(reader)
        line, header = next(records, (1, []))
        if not header:
            return rows
        path, label = source.places([column.strip() for column in header], f"{source.file}:{line}")
        for line, record in records:
            if len(record) != len(header):
                found = f"{counted(len(record), 'value')}, but the header names {counted(len(header), 'column')}"
                raise DataError(f"{source.file}:{line}: {found}: write a value that holds the delimiter in quotes")
            rows.add(line, record[path], None if label is None else record[label].strip(), progress)
    except csv.Error as e:
        raise DataError(f"{source.file}:{reader.line_num}: cannot be read as {_suffix(source.file)}: {e}") from e
    return rows


def _records(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Records and the lines on which they begin; blank lines are left out."""
    line = 1
    for record in reader:
        if record:
            yield line, record
        line = reader.line_num + 1


def _parquet(source: FileList) -> _Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise DataError(f"{source.file}: reading .parquet needs pyarrow: run 'pip install pyarrow', or save the list as .csv") from e
    rows = _Rows(source.file)
    try:
        with open(source.file, "rb") as f, pyarrow.parquet.ParquetFile(f) as table:
            names = table.schema_arrow.names
            places = source.places(names, str(source.file))
            wanted = list(dict.fromkeys(names[p] for p in places if p is not None))
            columns = table.read(columns=wanted, use_threads=False)  # threads would still be there when the DataLoader forks workers
            rows.paths = _texts(columns, source.path, rows, numbers=False)
            rows.labels = [] if places[1] is None else _texts(columns, names[places[1]], rows, numbers=True)
    except (pyarrow.ArrowException, OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno:
            raise
        raise DataError(f"{source.file}: cannot be read as .parquet: {str(e).partition(chr(10))[0]}") from e
    return rows


def _texts(columns: Any, name: str, rows: _Rows, numbers: bool) -> list[str]:
    """A parquet column as texts. Raises DataError where it holds other than texts (or whole numbers, where those are asked for) or nothing."""
    import pyarrow as pa

    column = columns.column(name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{rows.where(row)}: no value in the column '{name}': fill it in, or leave out the row")
    if numbers and pa.types.is_integer(kind):
        return list(map(str, column.cast(kind).to_pylist()))
    if not any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)):
        raise DataError(f"{rows.file}: the column '{name}' holds {kind}, but should hold {'whole numbers or names' if numbers else 'paths'}")
    return list(map(os.fsdecode, column.cast(kind).cast(pa.large_binary()).to_pylist()))


def _inside(rows: _Rows, roots: list[str]) -> list[str]:
    """The paths relative to the root. roots: the folder as it was named, and with its links resolved, both absolute."""
    starts = (*(os.path.join(root, "") for root in roots), "./")
    inside = []
    for row, path in enumerate(rows.paths):
        rest = next(path[len(s) :] for s in starts if path.startswith(s)) if path.startswith(starts) else path
        if len(rest) > _LONGEST_PATH or _ODD.search(rest):
            try:
                rest = _normal(path, roots)
            except ValueError as e:
                raise DataError(f"{rows.where(row)}: {e}") from None
        inside.append(rest)
    return inside


def _normal(path: str, roots: list[str]) -> str:
    """`path` relative to the root and without '.' and '..'. Raises ValueError where it leaves the root or can be no file's."""
    if "\0" in path:
        raise ValueError("a NUL byte, which no path holds: save the list as UTF-8")
    if len(path) > _LONGEST_PATH:
        raise ValueError(f"a path of {len(path):,} characters, more than a file's can have ({_LONGEST_PATH:,})")
    if not path or path.endswith("/"):
        raise ValueError(f"{shown(path)} is no file's path" if path else "the path is empty")
    whole = os.path.normpath(os.path.join(roots[-1], path))
    for root in roots:
        start = os.path.join(root, "")
        if whole.startswith(start):
            return whole[len(start) :]
    raise ValueError(f"{shown(path)} does not lie in {roots[-1]}: move the file there, or set data.root to a folder that holds all files")


def _numbered(rows: _Rows) -> tuple[NDArray[np.int64], list[str]]:
    """Labels int64 (N,), and the names of the classes."""
    if not rows.labels:
        return np.zeros(len(rows.paths), np.int64), ["0"]
    distinct = list(dict.fromkeys(rows.labels))
    numbers = bool(_WHOLE.fullmatch(distinct[0]))
    for label in distinct:
        wrong = _complaint(label, numbers)
        if wrong:
            raise DataError(f"{rows.where(rows.labels.index(label))}: {wrong}")
    numbered = {label: int(label) for label in distinct} if numbers else {label: i for i, label in enumerate(sorted(distinct))}
    labels = np.fromiter(map(numbered.__getitem__, rows.labels), np.int64, len(rows.labels))
    return labels, [str(i) for i in range(int(labels.max()) + 1)] if numbers else list(numbered)


def _complaint(label: str, numbers: bool) -> str:
    """What is wrong with a label among numbers, or among names; "" where nothing is."""
    if not label or "\0" in label:
        return "a NUL byte in the label: save the list as UTF-8" if label else "the label is empty: label every row"
    if _FRACTION.fullmatch(label):
        return f"the label {label} is not a whole number"
    if bool(_WHOLE.fullmatch(label)) != numbers:
        first, this = ("whole number", "name") if numbers else ("name", "whole number")
        return f"the label {shown(label)} is a {this}, but the first row's is a {first}: labels are all of one kind"
    if numbers and label.startswith("-"):
        return f"the label {shown(label)} is negative: labels count from 0"
    if numbers and (len(label) > 18 or int(label) >= _MOST_CLASSES):  # Python itself refuses to read thousands of digits
        return f"the label {shown(label)} is too large: a number is that of a class, below {_MOST_CLASSES:,}"
    return ""


def _folder(root: Path) -> Path:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder: set data.root to the folder that the paths are relative to")
    return root.resolve()
