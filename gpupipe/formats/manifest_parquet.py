"""Read .parquet manifests with pyarrow."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from numpy.typing import NDArray

from gpupipe.errors import DataError
from gpupipe.formats.manifest_rows import ManifestColumns, ManifestRows, find_columns
from gpupipe.runtime.installation import install_command


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
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise DataError(
            f"{name}: reading .parquet needs pyarrow: run {install_command('parquet')}, or save "
            "the list as .csv"
        ) from e
    rows = ManifestRows(name, {})
    try:
        with pyarrow.parquet.ParquetFile(f) as table:
            _read_columns(rows, table, wanted)
    except (pyarrow.ArrowException, OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno:
            raise
        raise DataError(
            f"{name}: cannot be read as .parquet: {str(e).partition(chr(10))[0]}"
        ) from e
    return rows


def _read_columns(rows: ManifestRows, table: Any, wanted: ManifestColumns) -> None:
    header = table.schema_arrow.names
    numbers = find_columns(header, wanted, rows.name)
    others = [n for n in (numbers.label, numbers.weight) if n is not None]
    chosen = [*numbers.paths.values(), *numbers.values.values(), *others, *numbers.rest.values()]
    names = list(dict.fromkeys(header[n] for n in chosen))
    # pyarrow's threads would still exist when the DataLoader forks its workers.
    columns = table.read(columns=names, use_threads=False)
    rows.paths = {
        name: _read_texts(columns, header[number], rows, "paths")
        for name, number in numbers.paths.items()
    }
    if numbers.label is not None:
        rows.labels = _read_texts(columns, header[numbers.label], rows, "whole numbers or names")
    rows.values = {
        name: _read_numbers(columns, header[number], rows)
        for name, number in numbers.values.items()
    }
    if numbers.weight is not None:
        rows.weights = _read_numbers(columns, header[numbers.weight], rows)
    if wanted.keeps_rest:
        rest = columns.select([header[n] for n in numbers.rest.values()])
        rows.rest = rest.to_pylist() if numbers.rest else [{} for _ in range(len(rows))]


def _read_texts(columns: Any, name: str, rows: ManifestRows, wanted: str) -> list[str]:
    """Return a parquet column as texts.

    Raises DataError if it has gaps or another type. Whole numbers may only be labels.
    """
    import pyarrow as pa

    column, kind = _read_column(columns, name, rows)
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
        raise DataError(f"{rows.name}: the column '{name}' holds {kind}, but should hold {wanted}")
    return list(map(os.fsdecode, column.cast(kind).cast(pa.large_binary()).to_pylist()))


def _read_numbers(columns: Any, name: str, rows: ManifestRows) -> NDArray[Any]:
    """Return a parquet column of numbers, int64 or float64 (N,)."""
    import pyarrow as pa

    column, kind = _read_column(columns, name, rows)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"{rows.name}: the column '{name}' holds {kind}, but should hold numbers")
    numbers: NDArray[Any] = (
        column.cast(kind).cast(pa.int64() if pa.types.is_integer(kind) else pa.float64()).to_numpy()
    )
    return numbers


def _read_column(columns: Any, name: str, rows: ManifestRows) -> tuple[Any, Any]:
    """Return a column and the type of its values. Raises DataError if it has gaps."""
    import pyarrow as pa

    column = columns.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(
            f"{rows.where(row)}: no value in the column '{name}': fill it in, or leave out the row"
        )
    return column, column.type.value_type if pa.types.is_dictionary(column.type) else column.type
