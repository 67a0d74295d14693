"""The columns to read from a manifest, and the rows that were read.

`read_parquet` reads .parquet manifests; manifest.py reads .txt, .csv and .tsv.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, BinaryIO

from numpy.typing import NDArray

from gpupipe.errors import DataError, did_you_mean, shown
from gpupipe.formats import arrow_columns
from gpupipe.formats.arrow_values import LabelsAndValues, read_numbers, read_texts
from gpupipe.formats.list_values import ListPlace, ListValues
from gpupipe.runtime.installation import install_command

PATH, LABEL = "path", "label"
_PROGRESS_ROWS = 100_000
_SEPARATORS = {";": "';'", "\t": "tabs", ",": "commas", "|": "'|'"}

Tick = Callable[[int], None]
"""A progress callback; its argument is the number of rows read so far."""


@dataclass(frozen=True)
class ManifestColumns:
    """The names of the manifest columns to read.

    Attributes:
        paths: Maps the name of each field to the column that holds its paths. The first field is
            the main one.
        label: The column of labels; None if there are no labels.
        is_label_required: Whether a missing column of labels is always an error. If false, a table
            of a single column is read without labels.
        values: Maps the name of each value to the column that holds its numbers.
        weight: The column of weights; None if there are none.
        lists: Maps the name of each list to its place. Only .parquet and .jsonl have lists.
        keeps_rest: Whether to read all other columns too, for `ManifestRows.rest`.
    """

    paths: dict[str, str]
    label: str | None
    is_label_required: bool = True
    values: dict[str, str] = field(default_factory=dict)
    weight: str | None = None
    lists: dict[str, ListPlace] = field(default_factory=dict)
    keeps_rest: bool = False

    def list_rest(self, header: Sequence[str]) -> list[str]:
        """Return the columns of `header` that `ManifestRows.rest` gets; [] unless `keeps_rest`."""
        named = {*self.paths.values(), self.label, self.weight}
        return [column for column in header if column not in named] if self.keeps_rest else []


@dataclass
class ManifestRows:
    """The N rows of a manifest.

    Attributes:
        name: The path or URL of the manifest, for messages.
        paths: Maps the name of each field to its N file paths.
        labels: The label of each row as text; empty if there are none.
        values: Maps the name of each value to its numbers, int64 or float64 (N,).
        weights: The weight of each row, int64 or float64 (N,); None if there are none.
        lists: Maps the name of each list to the lists of the rows.
        rest: For each row, a dict from the names of all columns except paths, label and weight to
            the row's cells. Empty unless `ManifestColumns.keeps_rest`. Cells are texts; in
            .parquet, Python objects.
        lines: The line at which each row begins, from 1; empty if the format has no lines.
    """

    name: str
    paths: dict[str, list[str]]
    labels: list[str] = field(default_factory=list)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    weights: NDArray[Any] | None = None
    lists: dict[str, ListValues] = field(default_factory=dict)
    rest: list[dict[str, Any]] = field(default_factory=list)
    lines: "array[int]" = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(next(iter(self.paths.values())))

    def where(self, row: int) -> str:
        """Return a row's place for messages: FILE:LINE, or "FILE: row N" (from 1) without lines."""
        return f"{self.name}:{self.lines[row]}" if self.lines else f"{self.name}: row {row + 1:,}"


def count_row(rows: ManifestRows, line: int, tick: Tick) -> None:
    """Record the line at which a row begins, and report progress now and then."""
    rows.lines.append(line)
    if len(rows.lines) % _PROGRESS_ROWS == 0:
        tick(len(rows.lines))


def check_header(header: Sequence[str], wanted: ManifestColumns, where: str) -> ManifestColumns:
    """Check that a table has each wanted column once.

    Args:
        header: The names of the table's columns.
        wanted: The columns to read.
        where: The file and line of the header, for messages.

    Returns:
        `wanted`, but without labels if they are not required and the table has a single column.

    Raises:
        DataError: A wanted column is missing, or two columns have its name.
    """
    if not wanted.is_label_required and len(header) == 1:
        wanted = replace(wanted, label=None)
    (_, path), *others = wanted.paths.items()
    options: list[tuple[str | None, str]] = [(path, PATH)]
    options += [(column, f"fields.{name}") for name, column in others]
    options += [(column, "values") for column in wanted.values.values()]
    options += [(wanted.label, LABEL), (wanted.weight, "weight")]
    for column, option in options:
        if column is not None:
            _check_column(header, column, option, where)
    return wanted


def _check_column(header: Sequence[str], name: str, option: str, where: str) -> None:
    count = list(header).count(name)
    if not count:
        if other := next((s for s in ";\t,|" if len(header) == 1 and s in header[0]), None):
            raise DataError(
                f"{where}: the columns seem to be separated by {_SEPARATORS[other]}: save the list "
                "with commas as .csv, or with tabs as .tsv"
            )
        suggestion = did_you_mean(name, {shown(column).strip("'") for column in header})
        otherwise = ", or data.label=null where there are no labels" if option == LABEL else ""
        raise DataError(
            f"{where}: no column '{name}'{suggestion}; set data.{option} to the column's name "
            f"(the columns are named by the header){otherwise}"
        )
    if count > 1:
        raise DataError(f"{where}: {count} columns are called '{name}': rename all but one")


def read_parquet(name: str, f: BinaryIO, wanted: ManifestColumns) -> ManifestRows:
    """Read a .parquet manifest.

    Args:
        name: The path or URL of the manifest, for messages.
        f: The manifest, open for reading.
        wanted: The columns to read.

    Raises:
        DataError: pyarrow, a column or a value is missing, or a column has a wrong type.
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
    wanted = check_header(header, wanted, rows.name)
    others = LabelsAndValues(wanted.label, wanted.values, wanted.lists)
    rest = wanted.list_rest(header)
    needed = [*wanted.paths.values(), *wanted.values.values(), wanted.label, wanted.weight]
    needed = [column for column in needed if column is not None]
    every = dict.fromkeys([*needed, *rest, *others.find_columns(header)])
    # pyarrow's threads would still exist when the DataLoader forks its workers.
    columns = table.read(columns=list(every), use_threads=False)
    for column in needed:
        if columns.column(column).null_count:
            row = columns.column(column).is_null().to_pylist().index(True)
            raise ValueError(
                f"row {row + 1:,}: no value in the column '{column}': fill it in, or leave out "
                "the row"
            )
    rows.paths = {
        name: read_texts(columns.column(column), column) for name, column in wanted.paths.items()
    }
    others.add(columns)
    rows.labels = [str(label) for labels in others.labels for label in labels]
    rows.values, rows.lists = others.join_values(), others.join_lists()
    if wanted.weight is not None:
        weights = columns.column(wanted.weight)
        rows.weights = read_numbers(weights, wanted.weight, "numbers")
    if wanted.keeps_rest:
        rows.rest = columns.select(rest).to_pylist() if rest else [{} for _ in range(len(rows))]
