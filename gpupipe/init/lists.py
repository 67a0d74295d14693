"""Finds out which columns of a list of files are paths and labels."""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path
from typing import Any

from gpupipe.dataset.shards import name_shard
from gpupipe.errors import GpupipeError
from gpupipe.formats import arrow_columns
from gpupipe.runtime.extras import require_extra

_FEW = 50
"""Rows that are looked at."""
_PATHS = ("path", "image", "file", "filename", "file_name", "image_path", "img", "filepath")
_LABELS = ("label", "class", "target", "category", "y", "label_id", "class_id")


def read_list_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source file_list for a list, and what is not certain.

    Raises:
        GpupipeError: No column holds paths of files.
    """
    if file.suffix.lower() == ".txt":
        return {}, []
    rows = _read_rows(file)
    columns = list(rows[0]) if rows else []
    path = _find_path_column(file, rows, columns)
    options: dict[str, Any] = {} if path == "path" else {"path": path}
    label = next((c for name in _LABELS for c in columns if c.lower() == name and c != path), None)
    notes = []
    if label is None:
        others = ", ".join(c for c in columns if c != path)
        options["label"] = None
        notes.append(f"no column looks like labels{f'; there are {others}' if others else ''}.")
    elif label != "label":
        options["label"] = label
    return options, notes


def has_images(file: Path) -> bool:
    """Whether a .parquet file has a column called image whose values are bytes, and no paths."""
    if file.suffix.lower() != ".parquet":
        return False
    require_extra("parquet", ("pyarrow",), f"reading {file}")
    import pyarrow as pa
    import pyarrow.parquet

    try:
        schema = pa.parquet.read_schema(file)
    except (OSError, ValueError, pa.ArrowException) as e:
        raise GpupipeError(f"{file}: cannot be read as .parquet: {e}") from e
    if "image" not in schema.names:
        return False
    kind = schema.field("image").type
    tests = (pa.types.is_struct, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def read_parquet_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source parquet for a shard, and what is not certain."""
    import pyarrow.parquet

    names = pyarrow.parquet.read_schema(file).names
    label = next((name for name in _LABELS if name in names), None)
    if label is None:
        return {"label": None}, [f"no column looks like labels; there are {', '.join(names)}."]
    return ({} if label == "label" else {"label": label}), []


def read_arrow_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source hf for a file of a saved data set, and what is not certain.

    Raises:
        DataError: The file cannot be read.
    """
    require_extra("hf", ("pyarrow",), f"reading {file}")
    with name_shard(file):
        schema = arrow_columns.read_schema(file)
    kinds = {
        name: feature.get("_type") if isinstance(feature, dict) else None
        for name, feature in arrow_columns.read_features(schema).items()
    }
    image = next((name for name in schema.names if kinds.get(name) == "Image"), "image")
    classes = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    label = next(iter(classes), None) or next((n for n in _LABELS if n in schema.names), None)
    options: dict[str, Any] = {} if image == "image" else {"fields": {"image": image}}
    if label is None:
        others = ", ".join(schema.names)
        return options | {"label": None}, [f"no column looks like labels; there are {others}."]
    return options | ({} if label == "label" else {"label": label}), []


def _read_rows(file: Path) -> list[dict[str, str]]:
    """Return the first rows of a table, by the names of the columns."""
    if file.suffix.lower() == ".parquet":
        require_extra("parquet", ("pyarrow",), f"reading {file}")
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                batch = next(table.iter_batches(_FEW), None)
        except (OSError, ValueError, pyarrow.ArrowException) as e:
            raise GpupipeError(f"{file}: cannot be read as .parquet: {e}") from e
        found = [] if batch is None else batch.to_pylist()
        return [{key: str(value) for key, value in row.items()} for row in found]
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    try:
        with file.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
            reader = csv.DictReader(stream, delimiter=delimiter)
            return [{k: v or "" for k, v in row.items() if k} for row in islice(reader, _FEW)]
    except (OSError, csv.Error) as e:
        raise GpupipeError(f"{file}: cannot be read: {e}") from e


def _find_path_column(file: Path, rows: list[dict[str, str]], columns: list[str]) -> str:
    """Return the column whose values are files beside the list."""
    first = [c for name in _PATHS for c in columns if c.lower() == name]
    for column in dict.fromkeys([*first, *columns]):
        if all(row[column] and (file.parent / row[column]).is_file() for row in rows):
            return column
    if first:
        return first[0]
    raise GpupipeError(
        f"{file}: no column holds paths of files beside it ({', '.join(columns) or 'it is empty'})"
    )
