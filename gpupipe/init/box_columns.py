"""Finds columns of lists that look like boxes, for the config to offer them.

The numbers of a box do not say which format they have, so the config never reads such a column
before the user has chosen.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.reading import map_file
from gpupipe.formats import arrow_columns, tar
from gpupipe.formats.list_values import ListValues, read_json_lists
from gpupipe.init.detected import BoxColumns, Detected
from gpupipe.init.tables import find_label_name

FORMATS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "the center, width, height",
}
_WITH_BOXES = ("area", "iscrowd")
_MAX_ROWS = 64
_MAX_MEMBERS = 256
"""Max number of members of a tar to look at."""


def offer_boxes(detected: Detected, file: Path) -> Detected:
    """Return detected data that name the columns of boxes in a file, if there are any.

    Args:
        detected: Data whose source reads lists from this file.
        file: A .jsonl, .parquet, .arrow or .tar.
    """
    found = find_boxes(_read_rows(file))
    if found is None:
        return detected
    if file.suffix.lower() == ".tar":
        others = {name: f"json:{path}" for name, path in found.others.items()}
        found = replace(found, boxes=f"json:{found.boxes}", others=others)
    note = (
        f"'{found.boxes}' looks like boxes, and is not read: their format is never guessed. Choose "
        "one in the comment under 'data:'."
    )
    return replace(detected, notes=[*detected.notes, note], boxes=found)


def find_boxes(rows: Sequence[Mapping[str, Any]]) -> BoxColumns | None:
    """Return the first column whose rows are lists of four numbers each; None if there is none.

    Args:
        rows: Some rows of a table, as JSON.
    """
    paths = list(_list_paths(rows[0])) if rows else []
    lists = {path: read_json_lists(rows, path, 4) for path in paths}
    boxes = next((path for path, found in lists.items() if _is_filled(found)), None)
    if boxes is None:
        return None
    top, counts = boxes.rpartition(".")[0], lists[boxes].counts
    beside = {}
    for path in paths:
        found = read_json_lists(rows, path, 0)
        if path.rpartition(".")[0] == top and _is_filled(found) and (found.counts == counts).all():
            beside[path.rpartition(".")[2]] = path
    label = find_label_name(beside)
    others = {} if label is None else {"labels": beside[label]}
    others |= {name: beside[name] for name in _WITH_BOXES if name in beside}
    values = np.asarray(lists[boxes].values)
    return BoxColumns(boxes, others, bool((values >= 0).all() and (values <= 1).all()))


def _is_filled(found: ListValues) -> bool:
    return not found.faults and bool(found.counts.any())


def _list_paths(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the columns of a row that may hold lists."""
    for name, value in row.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, Mapping):
            yield from (f"{name}.{member}" for member in inner)
        elif isinstance(value, list):
            yield name


def _read_rows(file: Path) -> list[Mapping[str, Any]]:
    """Return the lists in some rows of a file as JSON; [] if it has none."""
    suffix = file.suffix.lower()
    if suffix == ".tar":
        return list(_parse(_iter_json_members(file)))
    if suffix == ".jsonl":
        with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            return list(_parse(islice((line for line in lines if line.strip()), _MAX_ROWS)))
    if suffix == ".parquet":
        with arrow_columns.open_parquet(file) as table:
            names = _list_nested(table.schema_arrow)
            batches = table.iter_batches(_MAX_ROWS, columns=names, use_threads=False)
            return next((rows.to_pylist() for rows in batches), []) if names else []
    for batch in arrow_columns.iter_batches(file):
        rows = batch.rows.select(_list_nested(batch.rows.schema))
        found: list[Mapping[str, Any]] = rows.slice(0, _MAX_ROWS).to_pylist()
        return found
    return []


def _list_nested(schema: Any) -> list[str]:
    """Return the columns of lists and structs, without those that hold files."""
    from pyarrow import types

    nested = [field for field in schema if types.is_nested(field.type)]
    return [field.name for field in nested if "binary" not in str(field.type)]


def _iter_json_members(file: Path) -> Iterator[bytes]:
    data = map_file(file)
    for member in islice(tar.iter_members(data), _MAX_MEMBERS):
        if member.name.lower().endswith(".json"):
            yield data[member.offset : member.offset + member.size].tobytes()


def _parse(texts: Iterable[str | bytes]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in texts of JSON; none after a text that is no object."""
    for text in texts:
        try:
            row = json.loads(text)
        except ValueError:
            return
        if not isinstance(row, Mapping):
            return
        yield row
