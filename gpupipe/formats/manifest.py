"""Lists of samples: .txt, .csv, .tsv and .parquet files with a row a sample.

What is wrong is a DataError with FILE:LINE.
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
"""Called with how many rows were read."""


@dataclass(frozen=True)
class Wanted:
    """The columns to read. paths, values: by what the field or value is called, the name of the
    column. label: None: there are no labels.

    sure: whether the label's column must be there, and not only where a table has other columns
    than the first path's.
    """

    paths: dict[str, str]
    label: str | None
    sure: bool = True
    values: dict[str, str] = field(default_factory=dict)


@dataclass
class ManifestRows:
    """What a manifest says. paths, labels: as texts; labels is empty where there are none. values:
    int64 or float64 (N,).

    lines: of a text file, where each row begins, counted from 1; empty: rows have no lines.
    """

    file: Path
    paths: dict[str, list[str]]
    labels: list[str] = field(default_factory=list)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    lines: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(next(iter(self.paths.values())))

    def where(self, row: int) -> str:
        """How a message names the row: FILE:LINE, or the row's number, from 1."""
        return f"{self.file}:{self.lines[row]}" if self.lines else f"{self.file}: row {row + 1:,}"


def suffix(file: Path) -> str:
    """What says the format: ".csv", whatever its case."""
    return file.suffix.lower()


def read(file: Path, wanted: Wanted, tick: Tick) -> ManifestRows:
    """The wanted columns of a manifest. Raises DataError, and OSError where it cannot be read."""
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
            there = "no label" if label is None else "a label"
            raise DataError(
                f"{file}:{number}: {there}, other than in line {rows.lines[0]}: label every "
                "line, or none"
            )
        paths.append(path)
        rows.labels += [] if label is None else [label]
        _count(rows, number, tick)
    return rows


def _split(line: str, where: str) -> tuple[str, str | None]:
    """The path and the label of a line.

    A TAB separates them beyond doubt; behind mere spaces, the rest of a path must not pass for a
    label.
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
    paths, label, values = _places(header, wanted, where)
    texts: dict[str, list[str]] = {name: [] for name in values}
    columns = [(rows.paths[name], place) for name, place in paths.items()] + [
        (texts[name], place) for name, place in values.items()
    ]
    for line, record in records:
        if len(record) != len(header):
            found = (
                f"{counted(len(record), 'value')}, but the header names "
                f"{counted(len(header), 'column')}"
            )
            raise DataError(
                f"{rows.file}:{line}: {found}: write a value that holds the delimiter in quotes"
            )
        for column, place in columns:
            column.append(record[place])
        if label is not None:
            rows.labels.append(record[label].strip())
        _count(rows, line, tick)
    rows.values = {
        name: _numbers(rows, wanted.values[name], column) for name, column in texts.items()
    }


def _records(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Records and the lines on which they begin; blank lines are left out."""
    line = 1
    for record in reader:
        if record:
            yield line, record
        line = reader.line_num + 1


def _numbers(rows: ManifestRows, name: str, texts: list[str]) -> NDArray[Any]:
    """Whole numbers as int64, else float64."""
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


def _places(
    columns: Sequence[str], wanted: Wanted, where: str
) -> tuple[dict[str, int], int | None, dict[str, int]]:
    """Where the wanted columns stand among `columns`; None: there are no labels.

    `where` begins the DataError for one that is missing.
    """
    first, *others = wanted.paths.items()
    paths = {first[0]: _place(columns, first[1], PATH, where, "")}
    paths |= {name: _place(columns, column, f"fields.{name}", where, "") for name, column in others}
    values = {
        name: _place(columns, column, "values", where, "") for name, column in wanted.values.items()
    }
    if wanted.label is None or (not wanted.sure and len(columns) == 1):
        return paths, None, values
    return (
        paths,
        _place(
            columns, wanted.label, LABEL, where, ", or data.label=null where there are no labels"
        ),
        values,
    )


def _place(columns: Sequence[str], name: str, option: str, where: str, otherwise: str) -> int:
    found = [i for i, column in enumerate(columns) if column == name]
    if not found:
        known = did_you_mean(name, {shown(c).strip("'") for c in columns})
        raise DataError(
            f"{where}: no column '{name}'{known}; set data.{option} to the column's name "
            f"(the columns are named by the header){otherwise}"
        )
    if len(found) > 1:
        raise DataError(f"{where}: {len(found)} columns are called '{name}': rename all but one")
    return found[0]


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
            paths, label, values = _places(names, wanted, str(file))
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
            columns = table.read(
                columns=chosen, use_threads=False
            )  # threads would still be there when the DataLoader forks workers
            rows.paths = {
                name: _texts(columns, names[place], rows, "paths") for name, place in paths.items()
            }
            rows.labels = (
                []
                if label is None
                else _texts(columns, names[label], rows, "whole numbers or names")
            )
            rows.values = {
                name: _array(columns, names[place], rows) for name, place in values.items()
            }
    except (pyarrow.ArrowException, OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno:
            raise
        raise DataError(
            f"{file}: cannot be read as .parquet: {str(e).partition(chr(10))[0]}"
        ) from e
    return rows


def _texts(columns: Any, name: str, rows: ManifestRows, wanted: str) -> list[str]:
    """A parquet column as texts.

    Raises DataError where it holds other than texts (or whole numbers, where those may be labels)
    or nothing.
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
    """A parquet column of numbers, int64 or float64 (N,)."""
    import pyarrow as pa

    column, kind = _column(columns, name, rows)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"{rows.file}: the column '{name}' holds {kind}, but should hold numbers")
    found: NDArray[Any] = (
        column.cast(kind).cast(pa.int64() if pa.types.is_integer(kind) else pa.float64()).to_numpy()
    )
    return found


def _column(columns: Any, name: str, rows: ManifestRows) -> tuple[Any, Any]:
    """A column without gaps, and the type of what it holds."""
    import pyarrow as pa

    column = columns.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(
            f"{rows.where(row)}: no value in the column '{name}': fill it in, or leave out the row"
        )
    return column, column.type.value_type if pa.types.is_dictionary(column.type) else column.type
