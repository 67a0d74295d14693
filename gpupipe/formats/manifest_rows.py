"""The columns to read from a manifest, and the rows that were read.

`read_parquet` reads .parquet manifests; manifest.py reads .txt, .csv and .tsv.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, BinaryIO, TypeVar

from numpy.typing import NDArray

from gpupipe.errors import DataError, did_you_mean, shown
from gpupipe.formats import arrow_columns
from gpupipe.runtime.installation import install_command

PATH, LABEL = "path", "label"
T = TypeVar("T")
_PROGRESS_ROWS = 100_000

Tick = Callable[[int], None]
"""A progress callback; its argument is the number of rows read so far."""


@dataclass(frozen=True)
class ManifestColumns:
    """The names of the manifest columns to read.

    Attributes:
        paths: The column of paths of each field, by the field's name. The first is the main field.
        label: The column of labels; None if there are no labels.
        is_label_required: Whether a missing column of labels is always an error. If false, a table
            of a single column is read without labels.
        values: The column of numbers of each value, by the value's name.
        weight: The column of weights; None if there are none.
        keeps_rest: Whether to read all other columns too, for `ManifestRows.rest`.
    """

    paths: dict[str, str]
    label: str | None
    is_label_required: bool = True
    values: dict[str, str] = field(default_factory=dict)
    weight: str | None = None
    keeps_rest: bool = False


@dataclass
class ManifestRows:
    """The N rows of a manifest.

    Attributes:
        name: The path or URL of the manifest, for messages.
        paths: The file paths of each field, N texts, by the field's name.
        labels: The label of each row as text; empty if there are none.
        values: The numeric columns, int64 or float64 (N,), by name.
        weights: The weight of each row, int64 or float64 (N,); None if there are none.
        rest: For each row, the cells of all columns except paths, label and weight, by column name.
            Empty unless `keeps_rest`. Cells are texts; in .parquet, Python objects.
        lines: The line at which each row begins, from 1; empty if the format has no lines.
    """

    name: str
    paths: dict[str, list[str]]
    labels: list[str] = field(default_factory=list)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    weights: NDArray[Any] | None = None
    rest: list[dict[str, Any]] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(next(iter(self.paths.values())))

    def where(self, row: int) -> str:
        """Name a row for messages: FILE:LINE, or "FILE: row N" from 1 if there are no lines."""
        return f"{self.name}:{self.lines[row]}" if self.lines else f"{self.name}: row {row + 1:,}"


def count_row(rows: ManifestRows, line: int, tick: Tick) -> None:
    """Record the line at which a row begins, and report progress now and then."""
    rows.lines.append(line)
    if len(rows.lines) % _PROGRESS_ROWS == 0:
        tick(len(rows.lines))


@dataclass(frozen=True)
class ColumnNumbers:
    """The positions of the wanted columns in a table, from 0; None for columns not to be read."""

    paths: dict[str, int]
    label: int | None
    values: dict[str, int]
    weight: int | None
    rest: dict[str, int]


def find_columns(columns: Sequence[str], wanted: ManifestColumns, where: str) -> ColumnNumbers:
    """Find the wanted columns in the header of a table.

    Args:
        columns: The names of the table's columns.
        wanted: The columns to find.
        where: The file and line of the header, for messages.

    Raises:
        DataError: A column is missing, or two columns have its name.
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
    otherwise = ", or data.label=null where there are no labels"
    label = weight = None
    if wanted.label is not None and (wanted.is_label_required or len(columns) > 1):
        label = _column_number(columns, wanted.label, LABEL, where, otherwise)
    if wanted.weight is not None:
        weight = _column_number(columns, wanted.weight, "weight", where, "")
    taken = {*paths.values(), label, weight}
    rest = {column: n for n, column in enumerate(columns) if n not in taken}
    return ColumnNumbers(paths, label, values, weight, rest if wanted.keeps_rest else {})


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


def read_parquet(name: str, f: BinaryIO, wanted: ManifestColumns) -> ManifestRows:
    """Read a .parquet manifest.

    Args:
        name: The path or URL of the manifest, for messages.
        f: The manifest, open for reading.
        wanted: The columns to read.

    Raises:
        DataError: A column is missing or of another type, or a value is missing.
        OSError: The file cannot be read.
    """
    if find_spec("pyarrow") is None:
        raise DataError(
            f"{name}: reading .parquet needs pyarrow: run {install_command('parquet')}, or save "
            "the list as .csv"
        )
    rows = ManifestRows(name, {})
    try:
        with arrow_columns.open_parquet(f) as table:
            _read_columns(rows, table, wanted)
    except ValueError as e:
        raise DataError(f"{name}: {e}") from e
    return rows


def _read_columns(rows: ManifestRows, table: Any, wanted: ManifestColumns) -> None:
    header = table.schema_arrow.names
    numbers = find_columns(header, wanted, rows.name)
    others = [n for n in (numbers.label, numbers.weight) if n is not None]
    chosen = [*numbers.paths.values(), *numbers.values.values(), *others]
    names = list(dict.fromkeys(header[n] for n in [*chosen, *numbers.rest.values()]))
    # pyarrow's threads would still exist when the DataLoader forks its workers.
    columns = table.read(columns=names, use_threads=False)
    for column in (header[n] for n in chosen):
        if columns.column(column).null_count:
            row = columns.column(column).is_null().to_pylist().index(True)
            raise ValueError(
                f"row {row + 1:,}: no value in the column '{column}': fill it in, or leave out "
                "the row"
            )

    def read(reader: Callable[[Any, str], T], number: int) -> T:
        return reader(columns.column(header[number]), header[number])

    rows.paths = {
        name: read(arrow_columns.read_texts, number) for name, number in numbers.paths.items()
    }
    if numbers.label is not None:
        rows.labels = list(map(str, read(arrow_columns.read_labels, numbers.label)))
    rows.values = {
        name: read(arrow_columns.read_numbers, number) for name, number in numbers.values.items()
    }
    if numbers.weight is not None:
        name = header[numbers.weight]
        rows.weights = arrow_columns.read_numbers(columns.column(name), name, "numbers")
    if wanted.keeps_rest:
        rest = columns.select([header[n] for n in numbers.rest.values()])
        rows.rest = rest.to_pylist() if numbers.rest else [{} for _ in range(len(rows))]
