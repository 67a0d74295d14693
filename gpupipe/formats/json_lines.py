"""Reads .jsonl manifests: a JSON object in each line, whose members are the columns of a row."""

import json
from array import array
from typing import Any, BinaryIO

import numpy as np

from gpupipe.errors import DataError, did_you_mean, shown
from gpupipe.formats.list_values import read_json_lists
from gpupipe.formats.manifest_rows import ManifestColumns, ManifestRows, Tick, count_row

_MAX_LINE = 1 << 26
_BOM = b"\xef\xbb\xbf"


def read_json_lines(name: str, f: BinaryIO, wanted: ManifestColumns, tick: Tick) -> ManifestRows:
    """Read a .jsonl manifest.

    Args:
        name: The path or URL of the manifest, for messages.
        f: The manifest, open for reading.
        wanted: The columns to read.
        tick: Called now and then with the number of rows read.

    Raises:
        DataError: A line is no JSON object, or lacks a column, or a value has another type.
        OSError: The file cannot be read.
    """
    rows = ManifestRows(name, {field: [] for field in wanted.paths}, lines=array("q"))
    objects: list[dict[str, Any]] = []
    number = 0
    while line := f.readline(_MAX_LINE):
        number += 1
        if not line.strip():
            continue
        value = _parse(f"{name}:{number}", line.removeprefix(_BOM) if number == 1 else line)
        objects.append(value)
        count_row(rows, number, tick)
    for row, value in enumerate(objects):
        _add_texts(rows, row, value, wanted)
    rows.values = {
        field: _read_numbers(rows, objects, column, "values")
        for field, column in wanted.values.items()
    }
    if wanted.weight is not None:
        rows.weights = _read_numbers(rows, objects, wanted.weight, "weight")
    rows.lists = {field: read_json_lists(objects, *place) for field, place in wanted.lists.items()}
    if wanted.keeps_rest:
        rows.rest = [
            {key: value[key] for key in wanted.list_rest(list(value))} for value in objects
        ]
    return rows


def _parse(where: str, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as e:
        reason = "too many brackets" if isinstance(e, RecursionError) else str(e)[:100]
        raise DataError(f"{where}: no JSON that can be read: {reason}") from e
    if not isinstance(value, dict):
        raise DataError(f"{where}: {shown(value)} is no JSON object")
    return value


def _add_texts(
    rows: ManifestRows, row: int, value: dict[str, Any], wanted: ManifestColumns
) -> None:
    for field, column in wanted.paths.items():
        path = _get(rows, row, value, column, "path" if not row else f"fields.{field}")
        if not isinstance(path, str):
            raise DataError(f"{rows.where(row)}: {shown(path)} in '{column}' is no path")
        rows.paths[field].append(path)
    if wanted.label is not None:
        label = _get(rows, row, value, wanted.label, "label")
        if type(label) not in (str, int):
            raise DataError(
                f"{rows.where(row)}: the label {shown(label)} is neither a name nor a whole number"
            )
        rows.labels.append(str(label))


def _get(rows: ManifestRows, row: int, value: dict[str, Any], column: str, option: str) -> Any:
    if column not in value:
        raise DataError(
            f"{rows.where(row)}: no '{column}'{did_you_mean(column, value)}; set data.{option}"
        )
    return value[column]


def _read_numbers(
    rows: ManifestRows, objects: list[dict[str, Any]], column: str, option: str
) -> Any:
    """Return a column of numbers: int64 if all are whole, else float64."""
    numbers = []
    for row, value in enumerate(objects):
        number = _get(rows, row, value, column, option)
        if type(number) not in (int, float) or not -(2**63) <= number < 2**63:
            raise DataError(
                f"{rows.where(row)}: {shown(number)} in the column '{column}' is no number: write "
                f"one, or leave the column out of data.{option}"
            )
        numbers.append(number)
    return np.array(
        numbers, np.int64 if all(type(number) is int for number in numbers) else np.float64
    )
