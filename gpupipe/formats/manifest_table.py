"""Read .csv and .tsv manifests, whose first row names the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, counted, shown
from gpupipe.formats.manifest_rows import (
    ManifestColumns,
    ManifestRows,
    Tick,
    count_row,
    find_columns,
)

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_table(
    name: str, suffix: str, f: TextIO, wanted: ManifestColumns, tick: Tick
) -> ManifestRows:
    """Read a manifest whose first row names the columns.

    Args:
        name: The path or URL of the manifest, for messages.
        suffix: One of DELIMITERS.
        f: The manifest, open without translation of line ends.
        wanted: The columns to read.
        tick: Called now and then with the number of rows read.

    Raises:
        DataError: A row or column is missing or wrong, or the text is not UTF-8.
    """
    rows = ManifestRows(name, {field: [] for field in wanted.paths})
    reader = csv.reader(f, delimiter=DELIMITERS[suffix], strict=True)
    try:
        records = _iter_records(reader)
        line, header = next(records, (1, []))
        if header:
            columns = [column.strip() for column in header]
            _read_rows(rows, records, columns, wanted, f"{name}:{line}", tick)
    except csv.Error as e:
        raise DataError(f"{name}:{reader.line_num}: cannot be read as {suffix}: {e}") from e
    except UnicodeDecodeError as e:
        raise DataError(f"{name}: cannot be read as {suffix} in UTF-8: {e}") from e
    return rows


def _read_rows(
    rows: ManifestRows,
    records: Iterator[tuple[int, list[str]]],
    header: list[str],
    wanted: ManifestColumns,
    where: str,
    tick: Tick,
) -> None:
    numbers = find_columns(header, wanted, where)
    values: dict[str, list[str]] = {name: [] for name in numbers.values}
    weights: list[str] = []
    columns = [(rows.paths[name], number) for name, number in numbers.paths.items()]
    columns += [(values[name], number) for name, number in numbers.values.items()]
    columns += [] if numbers.weight is None else [(weights, numbers.weight)]
    for line, record in records:
        if len(record) != len(header):
            mismatch = (
                f"{counted(len(record), 'value')}, but the header names "
                f"{counted(len(header), 'column')}"
            )
            raise DataError(
                f"{rows.name}:{line}: {mismatch}: write a value that holds the delimiter in quotes"
            )
        for column, number in columns:
            column.append(record[number])
        if numbers.label is not None:
            rows.labels.append(record[numbers.label].strip())
        if wanted.keeps_rest:
            rows.rest.append({name: record[number] for name, number in numbers.rest.items()})
        count_row(rows, line, tick)
    rows.values = {
        name: _parse_numbers(rows, wanted.values[name], texts, "values")
        for name, texts in values.items()
    }
    if wanted.weight is not None:
        rows.weights = _parse_numbers(rows, wanted.weight, weights, "weight")


def _iter_records(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield records with the lines on which they begin. Skips blank lines."""
    line = 1
    for record in reader:
        if record:
            yield line, record
        line = reader.line_num + 1


def _parse_numbers(rows: ManifestRows, column: str, texts: list[str], option: str) -> NDArray[Any]:
    """Parse a column of numbers: int64 if all are whole, else float64."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(texts, dtype=object).astype(kind) if texts else np.empty(0, kind)
        except (ValueError, OverflowError):
            continue
    row = next(i for i, text in enumerate(texts) if not _is_number(text))
    raise DataError(
        f"{rows.where(row)}: {shown(texts[row])} in the column '{column}' is no number: write "
        f"one, or leave the column out of data.{option}"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
