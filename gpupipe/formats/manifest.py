"""Read manifests: .txt, .csv, .tsv and .parquet files with one row per sample.

A fault raises DataError with FILE:LINE.
"""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, counted, did_you_mean, shown

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".txt", *DELIMITERS, ".parquet")
PATH, LABEL = "path", "label"
_PROGRESS_ROWS = 100_000

Tick = Callable[[int], None]
"""Called with the number of rows read so far."""


@dataclass(frozen=True)
class Wanted:
    """The columns to read.

    Attributes:
        paths: The column of paths of each field, by the field's name. The first is the main field.
        label: The column of labels; None if there are no labels.
        sure: Whether a missing column of labels is always an error. If false, a table with a
            single column has no labels.
        values: The column of each value, by the value's name.
    """

    paths: dict[str, str]
    label: str | None
    sure: bool = True
    values: dict[str, str] = field(default_factory=dict)


@dataclass
class ManifestRows:
    """The rows of a manifest.

    Attributes:
        file: The manifest.
        paths: The paths of each field, by the field's name.
        labels: The labels as texts; empty if there are none.
        values: The numbers of each value, int64 or float64 (N,), by the value's name.
        lines: The line at which each row begins, from 1; empty if the format has no lines.
    """

    file: Path
    paths: dict[str, list[str]]
    labels: list[str] = field(default_factory=list)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    lines: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(next(iter(self.paths.values())))

    def where(self, row: int) -> str:
        """Name a row for messages: FILE:LINE, or "FILE: row N" from 1 if there are no lines."""
        return f"{self.file}:{self.lines[row]}" if self.lines else f"{self.file}: row {row + 1:,}"


def suffix(file: Path) -> str:
    """Return the suffix in lower case, such as ".csv". It decides the format."""
    return file.suffix.lower()


def read(file: Path, wanted: Wanted, tick: Tick) -> ManifestRows:
    """Read columns of a manifest.

    Args:
        file: The manifest, whose suffix decides the format.
        wanted: The columns to read.
        tick: Called now and then with the number of rows read.

    Raises:
        DataError: A row or column is missing or wrong.
        OSError: The file cannot be read.
    """
    if suffix(file) == ".parquet":
        return _parquet(file, wanted)
    with open(
        file,
        encoding="utf-8-sig",
        errors="surrogateescape",
        newline="" if suffix(file) in DELIMITERS else "\n",
    ) as f:
        return (
            _text(file, f, wanted, tick)
            if suffix(file) == ".txt"
            else _table(file, f, wanted, tick)
        )


# --- .txt


def _text(file: Path, f: TextIO, wanted: Wanted, tick: Tick) -> ManifestRows:
    rows = ManifestRows(file, {name: [] for name in wanted.paths})
    paths = next(iter(rows.paths.values()))
    for number, line in enumerate(f, 1):
        bare = line.strip(" \t\r\n")
        if not bare or bare[0] == "#":
            continue
        path, label = (bare, None) if wanted.label is None else _split(bare, f"{file}:{number}")
        if paths and (label is None) == bool(rows.labels):
            state = "no label" if label is None else "a label"
            raise DataError(
                f"{file}:{number}: {state}, other than in line {rows.lines[0]}: label every "
                "line, or none"
            )
        paths.append(path)
        rows.labels += [] if label is None else [label]
        _count(rows, number, tick)
    return rows


def _split(line: str, where: str) -> tuple[str, str | None]:
    """Split a line into path and label.

    A TAB separates them for certain. After a space, the text could also be the rest of a path: it
    is an error if it looks like one.
    """
    path, tab, label = line.rpartition("\t")
    if tab:
        return path.rstrip(" \t"), label.strip(" ")
    path, space, label = line.rpartition(" ")
    if space and ("/" in label or "." in label):
        raise DataError(
            f"{where}: {shown(label)} cannot be a label: write a TAB before the label, or "
            "set data.label=null where lines are paths alone"
        )
    return (path.rstrip(" "), label) if space else (line, None)


def _count(rows: ManifestRows, line: int, tick: Tick) -> None:
    rows.lines.append(line)
    if len(rows.lines) % _PROGRESS_ROWS == 0:
        tick(len(rows.lines))


# --- .csv and .tsv


def _table(file: Path, f: TextIO, wanted: Wanted, tick: Tick) -> ManifestRows:
    rows = ManifestRows(file, {name: [] for name in wanted.paths})
    reader = csv.reader(f, delimiter=DELIMITERS[suffix(file)], strict=True)
    try:
        records = _records(reader)
        line, header = next(records, (1, []))
        if header:
            _fill(
                rows, records, [column.strip() for column in header], wanted, f"{file}:{line}", tick
            )
    except csv.Error as e:
        raise DataError(f"{file}:{reader.line_num}: cannot be read as {suffix(file)}: {e}") from e
    return rows


def _fill(
    rows: ManifestRows,
    records: Iterator[tuple[int, list[str]]],
    header: list[str],
    wanted: Wanted,
    where: str,
    tick: Tick,
) -> None:
    paths, label, values = _column_numbers(header, wanted, where)
    texts: dict[str, list[str]] = {name: [] for name in values}
    columns = [(rows.paths[name], number) for name, number in paths.items()] + [
        (texts[name], number) for name, number in values.items()
    ]
    for line, record in records:
        if len(record) != len(header):
            mismatch = (
                f"{counted(len(record), 'value')}, but the header names "
                f"{counted(len(header), 'column')}"
            )
            raise DataError(
                f"{rows.file}:{line}: {mismatch}: write a value that holds the delimiter in quotes"
            )
        for column, number in columns:
            column.append(record[number])
        if label is not None:
            rows.labels.append(record[label].strip())
        _count(rows, line, tick)
    rows.values = {
        name: _numbers(rows, wanted.values[name], column) for name, column in texts.items()
    }


def _records(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield records with the lines on which they begin. Skips blank lines."""
    line = 1
    for record in reader:
        if record:
            yield line, record
        line = reader.line_num + 1


def _numbers(rows: ManifestRows, name: str, texts: list[str]) -> NDArray[Any]:
    """Parse a column of numbers: int64 if all are whole, else float64."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(texts, dtype=object).astype(kind) if texts else np.empty(0, kind)
        except (ValueError, OverflowError):
            continue
    row = next(i for i, text in enumerate(texts) if not _is_number(text))
    raise DataError(
        f"{rows.where(row)}: {shown(texts[row])} in the column '{name}' is no number: write "
        "one, or leave the column out of data.values"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column_numbers(
    columns: Sequence[str], wanted: Wanted, where: str
) -> tuple[dict[str, int], int | None, dict[str, int]]:
    """Return the numbers of the wanted columns: of paths, of labels (or None), and of values.

    `where` begins the DataError for a column that is missing.
    """
    first, *others = wanted.paths.items()
    paths = {first[0]: _column_number(columns, first[1], PATH, where, "")}
    paths |= {
        name: _column_number(columns, column, f"fields.{name}", where, "")
        for name, column in others
    }
    values = {
        name: _column_number(columns, column, "values", where, "")
        for name, column in wanted.values.items()
    }
    if wanted.label is None or (not wanted.sure and len(columns) == 1):
        return paths, None, values
    return (
        paths,
        _column_number(
            columns, wanted.label, LABEL, where, ", or data.label=null where there are no labels"
        ),
        values,
    )


def _column_number(
    columns: Sequence[str], name: str, option: str, where: str, otherwise: str
) -> int:
    matches = [i for i, column in enumerate(columns) if column == name]
    if not matches:
        suggestion = did_you_mean(name, {shown(c).strip("'") for c in columns})
        raise DataError(
            f"{where}: no column '{name}'{suggestion}; set data.{option} to the column's name "
            f"(the columns are named by the header){otherwise}"
        )
    if len(matches) > 1:
        raise DataError(f"{where}: {len(matches)} columns are called '{name}': rename all but one")
    return matches[0]


# --- .parquet


def _parquet(file: Path, wanted: Wanted) -> ManifestRows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise DataError(
            f"{file}: reading .parquet needs pyarrow: run 'pip install pyarrow', or save "
            "the list as .csv"
        ) from e
    rows = ManifestRows(file, {})
    try:
        with open(file, "rb") as f, pyarrow.parquet.ParquetFile(f) as table:
            names = table.schema_arrow.names
            paths, label, values = _column_numbers(names, wanted, str(file))
            chosen = list(
                dict.fromkeys(
                    names[p]
                    for p in (
                        *paths.values(),
                        *values.values(),
                        *([] if label is None else [label]),
                    )
                )
            )
            # pyarrow's threads would still exist when the DataLoader forks its workers.
            columns = table.read(columns=chosen, use_threads=False)
            rows.paths = {
                name: _texts(columns, names[number], rows, "paths")
                for name, number in paths.items()
            }
            rows.labels = (
                []
                if label is None
                else _texts(columns, names[label], rows, "whole numbers or names")
            )
            rows.values = {
                name: _array(columns, names[number], rows) for name, number in values.items()
            }
    except (pyarrow.ArrowException, OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno:
            raise
        raise DataError(
            f"{file}: cannot be read as .parquet: {str(e).partition(chr(10))[0]}"
        ) from e
    return rows


def _texts(columns: Any, name: str, rows: ManifestRows, wanted: str) -> list[str]:
    """Return a parquet column as texts.

    Raises DataError if it has gaps or another type. Whole numbers may only be labels.
    """
    import pyarrow as pa

    column, kind = _column(columns, name, rows)
    if wanted != "paths" and pa.types.is_integer(kind):
        return list(map(str, column.cast(kind).to_pylist()))
    if not any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    ):
        raise DataError(f"{rows.file}: the column '{name}' holds {kind}, but should hold {wanted}")
    return list(map(os.fsdecode, column.cast(kind).cast(pa.large_binary()).to_pylist()))


def _array(columns: Any, name: str, rows: ManifestRows) -> NDArray[Any]:
    """Return a parquet column of numbers, int64 or float64 (N,)."""
    import pyarrow as pa

    column, kind = _column(columns, name, rows)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"{rows.file}: the column '{name}' holds {kind}, but should hold numbers")
    numbers: NDArray[Any] = (
        column.cast(kind).cast(pa.int64() if pa.types.is_integer(kind) else pa.float64()).to_numpy()
    )
    return numbers


def _column(columns: Any, name: str, rows: ManifestRows) -> tuple[Any, Any]:
    """Return a column and the type of its values. Raises DataError if it has gaps."""
    import pyarrow as pa

    column = columns.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(
            f"{rows.where(row)}: no value in the column '{name}': fill it in, or leave out the row"
        )
    return column, column.type.value_type if pa.types.is_dictionary(column.type) else column.type
