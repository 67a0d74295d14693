"""Read lists of samples: manifests (.txt, .csv, .tsv, .jsonl, .parquet), and files of ids.

A fault raises DataError with FILE:LINE. The sources of local files and the cache of a remote data
set all read their manifests here.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, counted, shown
from gpupipe.formats.json_lines import read_json_lines
from gpupipe.formats.manifest_rows import (
    ManifestColumns,
    ManifestRows,
    Tick,
    check_header,
    count_row,
    read_parquet,
)
from gpupipe.runtime.files import open_regular

DELIMITERS = {".csv": ",", ".tsv": "\t"}
WITH_LISTS = (".parquet", ".jsonl")
"""The suffixes of manifests whose columns may hold lists."""
SUFFIXES = (".txt", *DELIMITERS, *WITH_LISTS)


def get_suffix(file: Path | str) -> str:
    """Return the suffix of a path or URL in lower case, such as ".csv". It decides the format."""
    return PurePosixPath(file).suffix.lower()


def read(file: Path, wanted: ManifestColumns, tick: Tick) -> ManifestRows:
    """Read columns of a manifest.

    Args:
        file: The manifest, whose suffix decides the format.
        wanted: The columns to read.
        tick: Called now and then with the number of rows read.

    Raises:
        DataError: A row or column is missing or wrong.
        OSError: The file cannot be read.
    """
    with open_regular(file) as f:
        # Paths of files may hold bytes that are not UTF-8.
        return read_stream(str(file), f, wanted, tick, "surrogateescape")


def read_stream(
    name: str, f: BinaryIO, wanted: ManifestColumns, tick: Tick, encoding_errors: str = "strict"
) -> ManifestRows:
    """Read columns of a manifest from an open file.

    Args:
        name: The path or URL of the manifest, for messages. Its suffix decides the format.
        f: The manifest, open for reading.
        wanted: The columns to read.
        tick: Called now and then with the number of rows read.
        encoding_errors: Error handler for bytes that are not UTF-8: "strict" or "surrogateescape".

    Raises:
        DataError: A row or column is missing or wrong.
        OSError: The file cannot be read.
    """
    suffix = get_suffix(name)
    if suffix == ".parquet":
        return read_parquet(name, f, wanted)
    if suffix == ".jsonl":
        return read_json_lines(name, f, wanted, tick)
    newline = "" if suffix in DELIMITERS else "\n"
    with io.TextIOWrapper(f, "utf-8-sig", encoding_errors, newline) as text:
        if suffix in DELIMITERS:
            return _read_table(name, suffix, text, wanted, tick)
        return _read_text(name, text, wanted, tick)


# --- .txt


def _read_text(name: str, f: TextIO, wanted: ManifestColumns, tick: Tick) -> ManifestRows:
    """Read a .txt manifest: a path in each line, and a label if `wanted.label` is set."""
    rows = ManifestRows(name, {field: [] for field in wanted.paths})
    paths = next(iter(rows.paths.values()))
    for number, line in enumerate(f, 1):
        bare = line.strip(" \t\r\n")
        if not bare or bare[0] == "#":
            continue
        path, label = (
            (bare, None) if wanted.label is None else _split_label(bare, f"{name}:{number}")
        )
        if paths and (label is None) == bool(rows.labels):
            state = "no label" if label is None else "a label"
            raise DataError(
                f"{name}:{number}: {state}, other than in line {rows.lines[0]}: label every "
                "line, or none"
            )
        paths.append(path)
        rows.labels += [] if label is None else [label]
        count_row(rows, number, tick)
    return rows


def _split_label(line: str, where: str) -> tuple[str, str | None]:
    """Split a line into path and label.

    The label is the text after the last TAB. Without a TAB, it is the text after the last space.
    Text after a space may also belong to the path: raises DataError if it contains "/" or ".".
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


# --- .csv and .tsv


def _read_table(
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
        _read_rows(rows, _iter_records(reader), wanted, tick)
    except csv.Error as e:
        raise DataError(f"{name}:{reader.line_num}: cannot be read as {suffix}: {e}") from e
    except UnicodeDecodeError as e:
        raise DataError(f"{name}: cannot be read as {suffix} in UTF-8: {e}") from e
    return rows


def _read_rows(
    rows: ManifestRows,
    records: Iterator[tuple[int, list[str]]],
    wanted: ManifestColumns,
    tick: Tick,
) -> None:
    first_line, names = next(records, (1, []))
    if not names:
        return
    header = [name.strip() for name in names]
    wanted = check_header(header, wanted, f"{rows.name}:{first_line}")
    number_of = {column: number for number, column in enumerate(header)}
    rest = wanted.list_rest(header)
    values: dict[str, list[str]] = {name: [] for name in wanted.values}
    weights: list[str] = []
    columns = [(rows.paths[name], number_of[column]) for name, column in wanted.paths.items()]
    columns += [(values[name], number_of[column]) for name, column in wanted.values.items()]
    columns += [] if wanted.weight is None else [(weights, number_of[wanted.weight])]
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
        if wanted.label is not None:
            rows.labels.append(record[number_of[wanted.label]].strip())
        if wanted.keeps_rest:
            rows.rest.append({column: record[number_of[column]] for column in rest})
        count_row(rows, line, tick)
    rows.values = {
        name: _parse_numbers(rows, wanted.values[name], texts, "values")
        for name, texts in values.items()
    }
    if wanted.weight is not None:
        rows.weights = _parse_numbers(rows, wanted.weight, weights, "weight")


def _iter_records(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line's number, and the cells, of each row of csv.reader. Skip blank rows."""
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


_BOM = b"\xef\xbb\xbf"
_MAX_DIGITS = 18


def read_ids(file: Path, count: int) -> NDArray[np.int64]:
    """Read a file of sample ids, one per line. Skips empty lines.

    Args:
        file: The file of ids.
        count: The number of samples in the data set; ids are 0 to `count` - 1.

    Returns:
        The ids in ascending order, int64 (n,), n > 0.

    Raises:
        DataError: The file cannot be read or has no ids, a line is not a valid id, or an id is
            there twice.
    """
    try:
        with open_regular(file) as stream:
            lines = stream.read().removeprefix(_BOM).splitlines()
    except OSError as e:
        raise DataError(
            f"{file}: cannot be read: {e.strerror or e}: set loader.subset to a share such as "
            "0.1, or to a file of ids, one a line"
        ) from e
    texts = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise DataError(f"{file}: no ids in it: write the ids of samples, one a line")
    ids = np.array([_read_id(file, number, text, count) for number, text in texts], np.int64)
    order = np.argsort(ids, kind="stable")
    again = order[1:][np.diff(ids[order]) == 0]
    if len(again):
        number, text = texts[again.min()]
        raise DataError(
            f"{file}:{number}: id {text.decode()} came before: a sample is in a subset once; "
            "loader.repeats repeats all samples"
        )
    return ids[order]


def _read_id(file: Path, number: int, text: bytes, count: int) -> int:
    is_number = text.isdigit() and len(text) <= _MAX_DIGITS
    if is_number and int(text) < count:
        return int(text)
    rule = f"the ids of {counted(count, 'sample')} are 0 to {count - 1}, as in batch['id']"
    value = text.decode(errors="replace")
    raise DataError(f"{file}:{number}: {value if is_number else shown(value)} is no id: {rule}")
