"""Lists a remote data set: its files, or the rows of its manifest.

It runs in a process of its own, so that training imports no client library of a store.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.listing import UNKNOWN, Listing, compute_fingerprint, hash_version
from gpupipe.cache.settings import DataSet
from gpupipe.cache.store import Store, file_version, read_url
from gpupipe.dataset import labels as classes_of
from gpupipe.dataset.strings import StringArray
from gpupipe.errors import DataError, did_you_mean, shown

_ODD = re.compile(r"[\0\\]|(?:^|/)\.{0,2}(?:/|$)|^[a-zA-Z][a-zA-Z0-9+.-]*:")
"""Matches names that are not plain paths NAME/NAME/...: with NUL or backslash, with a part that is
'', '.' or '..', or URLs.
"""
_WHOLE = re.compile(r"[0-9]{1,18}")
_LONGEST = 4096


@dataclass
class StoreRows:
    """The columns of a listing, as read. Columns that the data set lacks are empty."""

    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)


def list_samples(dataset: DataSet, store: Store) -> Listing:
    """List the samples of a data set.

    Args:
        dataset: Which samples there are.
        store: Where the files are.

    Raises:
        DataError: There are no samples, or a name or a value is invalid.
    """
    rows = _files(dataset, store) if dataset.manifest is None else _manifest(dataset)
    if not rows.names:
        raise DataError(_explain_no_rows(dataset))
    labels, classes = _number_labels(rows, dataset.manifest)
    names, unknown = StringArray.from_strings(rows.names), [UNKNOWN] * len(rows.names)
    sizes, tags = (
        np.array(rows.sizes or unknown, np.int64),
        np.array(rows.tags or [0] * len(unknown), np.uint64),
    )
    weights = np.array(rows.weights, np.float64)
    values = {name: _numbers(column) for name, column in rows.values.items()}
    return Listing(
        names,
        labels,
        sizes,
        tags,
        weights,
        StringArray.from_strings(rows.metadata),
        classes,
        compute_fingerprint(names, labels, classes),
        values,
    )


def _explain_no_rows(dataset: DataSet) -> str:
    if dataset.manifest is not None:
        return f"{dataset.manifest}: no rows: list at least one sample"
    return (
        f"{dataset.url}: no files that end in {', '.join(dataset.extensions)}: set data.url, "
        "or data.extensions"
    )


def check_name(name: str, where: str) -> str:
    """Return `name` if it is a path that stays under the url.

    Args:
        name: Path of a file under the url.
        where: The place of the name in the manifest, or the url, for the message.

    Raises:
        DataError: The name could lead elsewhere.
    """
    if len(name) > _LONGEST or _ODD.search(name):
        raise DataError(
            f"{where}: {shown(name)} is no name of a file below data.url: parts like '..', "
            "absolute paths and other URLs are refused"
        )
    return name


def _files(dataset: DataSet, store: Store) -> StoreRows:
    """Return all files under the url, sorted by name."""
    suffixes, rows = tuple(f".{e.lower().lstrip('.')}" for e in dataset.extensions), StoreRows()
    for name, info in sorted(store.list_files().items()):
        if not name.lower().endswith(suffixes):
            continue
        rows.names.append(check_name(name, dataset.url))
        size = info.get("size")
        rows.sizes.append(size if type(size) is int and size >= 0 else UNKNOWN)
        rows.tags.append(hash_version(file_version(info)))
        if dataset.label is not None:
            rows.labels.append(_class(name, dataset.url))
    return rows


def _class(name: str, url: str) -> str:
    folder = name.rpartition("/")[0].rpartition("/")[2]
    if not folder:
        raise DataError(
            f"{url}: {shown(name)} lies in no folder that names its class: move it into "
            "one, or set data.label: null where there are no labels"
        )
    return folder


def _manifest(dataset: DataSet) -> StoreRows:
    rows, start = StoreRows(), f"{dataset.url}/"
    for where, record in _records(dataset):
        name = str(record.pop(dataset.path))
        rows.names.append(check_name(name.removeprefix(start), where))
        if dataset.label is not None:
            rows.labels.append(_label(record.pop(dataset.label), where))
        if dataset.weight is not None:
            rows.weights.append(_weight(record.pop(dataset.weight), where))
        for column in dataset.values:
            rows.values.setdefault(column, []).append(_number(record[column], column, where))
        rows.metadata.append(json.dumps(record, default=str) if record else "{}")
    if rows.weights and not any(rows.weights):
        raise DataError(
            f"{dataset.manifest}: every weight is 0, so that nothing would be fetched: see "
            "data.weight"
        )
    return rows


def _records(dataset: DataSet) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of the manifest: its place, for messages, and its columns by name."""
    manifest = str(dataset.manifest)
    read = _csv if manifest.lower().endswith(".csv") else _parquet
    try:
        yield from read(
            manifest,
            read_url(manifest, dataset),
            [
                c
                for c in (dataset.path, dataset.label, dataset.weight, *dataset.values)
                if c is not None
            ],
        )
    except OSError as e:
        raise DataError(
            f"{manifest}: cannot be read: {e.strerror or e}: set data.manifest to the list "
            "of the samples"
        ) from e


def _check_columns(manifest: str, columns: list[str], wanted: list[str]) -> None:
    for name in wanted:
        if columns.count(name) != 1:
            problem = (
                f"no column '{name}'{did_you_mean(name, columns)}"
                if name not in columns
                else f"several columns '{name}'"
            )
            raise DataError(
                f"{manifest}: {problem}; data.path, data.label, data.weight and data.values "
                "name columns; data.label: null where there are no labels"
            )


def _csv(manifest: str, data: bytes, wanted: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        header = next(reader, [])
        _check_columns(manifest, header, wanted)
        for record in reader:
            where = f"{manifest}:{reader.line_num}"
            if len(record) not in (0, len(header)):
                raise DataError(
                    f"{where}: {len(record)} values, and the header names {len(header)} "
                    "columns: write a value that holds a comma in quotes"
                )
            if record:
                yield where, dict(zip(header, record, strict=True))
    except (csv.Error, UnicodeDecodeError) as e:
        raise DataError(f"{manifest}: cannot be read as .csv in UTF-8: {e}") from e


def _parquet(manifest: str, data: bytes, wanted: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise DataError(
            f"{manifest}: reading .parquet needs pyarrow: run 'pip install pyarrow', or "
            "save the list as .csv"
        ) from e
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(data))
        _check_columns(manifest, table.column_names, wanted)
        for number, record in enumerate(table.to_pylist(), 1):
            yield f"{manifest}: row {number:,}", record
    except pyarrow.ArrowException as e:
        raise DataError(
            f"{manifest}: cannot be read as .parquet: {str(e).partition(chr(10))[0]}"
        ) from e


def _label(value: Any, where: str) -> str:
    text = (
        str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    )
    if not text or "\0" in text:
        raise DataError(f"{where}: {shown(value)} is no label: a name, or a whole number from 0 on")
    return text


def _weight(value: Any, where: str) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise DataError(f"{where}: {shown(value)} is no weight: a number from 0 on")
    return weight


def _number(value: Any, column: str, where: str) -> float:
    """Return an int if the value is written as one, else a float."""
    try:
        return int(value) if _WHOLE.fullmatch(str(value).lstrip("-")) else float(value)
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: {shown(value)} in the column '{column}' is no number, and "
            "data.values names it"
        ) from None


def _numbers(column: list[float]) -> NDArray[Any]:
    """Return int64 if all numbers are whole, else float64, as the source file_list does."""
    return np.array(column, np.int64 if all(isinstance(n, int) for n in column) else np.float64)


def _number_labels(rows: StoreRows, manifest: str | None) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels, int64 (N,), and the names of the classes.

    A manifest's labels are numbered as in every source; folders are numbered in sorted order.
    """
    if not rows.labels:
        return classes_of.make_unlabelled(len(rows.names))
    if manifest is not None:
        return classes_of.from_texts(rows.labels, lambda i: f"{manifest}: {rows.names[i]}")
    distinct = sorted(set(rows.labels))
    number_of = {label: n for n, label in enumerate(distinct)}
    return np.array([number_of[label] for label in rows.labels], np.int64), distinct
