"""Reads lists of samples: tables in .csv, .tsv and .parquet, .txt, and the usual forms of JSON."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpupipe.errors import DataError, GpupipeError
from gpupipe.formats import manifest
from gpupipe.formats.manifest import DELIMITERS
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.runtime.files import open_regular
from gpupipe.runtime.installation import require_extra

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl")
Table = dict[str, list[str]]
"""The columns of a table, as texts, by their names."""
NUM_ANNOTATIONS = "num_annotations"
"""The column with how many annotations of COCO an image has, if it is not one for each."""


def read_table(file: Path) -> Table:
    """Return the columns of a list of samples; {} if the file is no such list.

    Raises:
        GpupipeError: The file cannot be read.
    """
    suffix = file.suffix.lower()
    try:
        open_regular(file).close()  # the readers below would wait for a pipe
        if suffix == ".parquet":
            return _read_parquet(file)
        if suffix in (".json", ".jsonl"):
            return _read_json(file)
        return _read_text(file) if _is_text(file) else _read_csv(file)
    except (OSError, csv.Error) as e:
        raise GpupipeError(f"{file}: cannot be read: {e}") from e


def is_file_list(file: Path) -> bool:
    """Whether the source file_list reads a table: its suffix says what the delimiter is."""
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _find_delimiter(file) == DELIMITERS[suffix]
    return suffix == ".parquet" or _is_text(file)


def _is_text(file: Path) -> bool:
    """Whether a file is a .txt of paths and labels, and no table with a header such as a,b."""
    if file.suffix.lower() != ".txt":
        return False
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as stream:
        header = stream.readline()
    return "," not in header or "." in header


def _read_csv(file: Path) -> Table:
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        rows = list(filter(None, csv.reader(stream, delimiter=_find_delimiter(file))))
    names = [name.strip() for name in rows[0]] if rows else []
    rows = [row for row in rows[1:] if len(row) == len(names)]
    return {name: [row[n] for row in rows] for n, name in enumerate(names) if name}


def _find_delimiter(file: Path) -> str:
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as stream:
        header = stream.readline()
    return max(",\t;|", key=header.count)


def _read_text(file: Path) -> Table:
    """Return paths and labels as the source file_list reads them; {} if it cannot."""
    for label in ("label", None):
        try:
            rows = manifest.read(file, ManifestColumns({"path": "path"}, label), lambda _: None)
        except DataError:
            continue
        paths = rows.paths["path"]
        return {"path": paths} | ({"label": rows.labels} if rows.labels else {})
    return {}


def _read_parquet(file: Path) -> Table:
    require_extra("parquet", ("pyarrow",), f"reading {file}")
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(file)
        names = [field.name for field in schema if not _holds_bytes(field.type)]
        table = pyarrow.parquet.read_table(file, columns=names, use_threads=False)
    except (OSError, ValueError, pyarrow.ArrowException) as e:
        raise GpupipeError(f"{file}: cannot be read as .parquet: {e}") from e
    return {name: list(map(str, table[name].to_pylist())) for name in table.column_names}


def _holds_bytes(kind: Any) -> bool:
    from pyarrow import types

    return any((types.is_nested(kind), types.is_binary(kind), types.is_large_binary(kind)))


def _read_json(file: Path) -> Table:
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix.lower() == ".jsonl":
            return _join_rows(json.loads(line) for line in text.splitlines() if line.strip())
        content = json.loads(text)
    except ValueError:
        return {}
    if isinstance(content, dict):
        images = isinstance(content.get("images"), list)
        return _read_coco(content) if images else _read_mapping(content)
    return _join_rows(content) if isinstance(content, list) else {}


def _read_mapping(content: Mapping[str, Any]) -> Table:
    """Return the table of {file: label}, or of {file: {column: value}}."""
    if all(isinstance(value, dict) for value in content.values()):
        return _join_rows({"path": key} | value for key, value in content.items())
    if any(isinstance(value, (list, dict)) for value in content.values()):
        return {}
    return {"path": list(content), "label": list(map(str, content.values()))}


def _join_rows(rows: Iterable[Any]) -> Table:
    """Return the columns of objects with the same keys; values that are no scalars are left out."""
    objects = list(rows)
    if not objects or not all(isinstance(row, Mapping) for row in objects):
        return {}
    names = [
        name
        for name in objects[0]
        if all(isinstance(row.get(name), (str, int, float)) for row in objects)
    ]
    return {name: [str(row[name]) for row in objects] for name in names}


def _read_coco(content: Mapping[str, Any]) -> Table:
    """Return the files of COCO's format, with labels if each has one annotation at most."""
    images: Sequence[Any] = content["images"]
    table = _join_rows(images)
    annotations = content.get("annotations") or []
    if not table or "id" not in table or not all(isinstance(a, dict) for a in annotations):
        return table
    counts = Counter(str(a.get("image_id")) for a in annotations)
    if {counts[key] for key in table["id"]} != {1}:
        return table | {NUM_ANNOTATIONS: [str(counts[key]) for key in table["id"]]}
    names = {str(c.get("id")): str(c.get("name")) for c in content.get("categories") or []}
    label_of = {str(a["image_id"]): str(a.get("category_id")) for a in annotations}
    return table | {"label": [names.get(label_of[key], label_of[key]) for key in table["id"]]}
