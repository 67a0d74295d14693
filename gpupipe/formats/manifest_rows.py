"""What a manifest holds: the columns to read, and the rows that were read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from gpupipe.errors import DataError, did_you_mean, shown

PATH, LABEL = "path", "label"
_PROGRESS_ROWS = 100_000

Tick = Callable[[int], None]
"""Called with the number of rows read so far."""


@dataclass(frozen=True)
class ManifestColumns:
    """The columns to read.

    Attributes:
        paths: The column of paths of each field, by the field's name. The first is the main field.
        label: The column of labels; None if there are no labels.
        is_label_required: Whether a missing column of labels is always an error. If false, a table
            with a single column has no labels.
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
    """The rows of a manifest.

    Attributes:
        name: The path or URL of the manifest, for messages.
        paths: The paths of each field, by the field's name.
        labels: The labels as texts; empty if there are none.
        values: The numbers of each value, int64 or float64 (N,), by the value's name.
        weights: The weights, int64 or float64 (N,); None if there are none.
        rest: Every column but those of paths, labels and weights, by name, for each row; empty
            unless `keeps_rest`. Values are texts, or Python objects if the format has types.
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
    """The numbers of the wanted columns in a table, from 0; None if there is no such column."""

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
        where: The place of the header, for messages.

    Raises:
        DataError: A column is missing, or stands there twice.
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
