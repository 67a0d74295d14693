"""Reads lists of samples, and chooses the column of labels.

A list is a .csv, .tsv, .parquet or .txt file, or a JSON file in a common layout, such as COCO's.
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupipe.dataset import labels
from gpupipe.dataset.paths import name_file
from gpupipe.errors import DataError, GpupipeError
from gpupipe.formats import arrow_columns, manifest
from gpupipe.formats.manifest import DELIMITERS
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.init.detected import PART_WORDS, name_some
from gpupipe.runtime.files import open_regular
from gpupipe.runtime.installation import require_extra

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl")
Table = dict[str, list[str]]
"""The columns of a table by name; all cells are texts."""
NUM_ANNOTATIONS = "num_annotations"
"""The column with each image's number of COCO annotations. Left out if each image has just one."""


def read_table(file: Path) -> Table:
    """Return the columns of a list of samples; {} if the file is not a list.

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
    """Return whether the source file_list can read a table: its suffix must fit its delimiter."""
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _find_delimiter(file) == DELIMITERS[suffix]
    return suffix in manifest.WITH_LISTS or _is_text(file)


def _is_text(file: Path) -> bool:
    """Return whether a file is a .txt of paths and labels, not a table with a header like a,b."""
    if file.suffix.lower() != ".txt":
        return False
    header = _read_first_line(file)
    return "," not in header or "." in header


def _read_csv(file: Path) -> Table:
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        rows = list(filter(None, csv.reader(stream, delimiter=_find_delimiter(file))))
    names = [name.strip() for name in rows[0]] if rows else []
    rows = [row for row in rows[1:] if len(row) == len(names)]
    return {name: [row[n] for row in rows] for n, name in enumerate(names) if name}


def _find_delimiter(file: Path) -> str:
    return max(",\t;|", key=_read_first_line(file).count)


def _read_first_line(file: Path) -> str:
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as stream:
        return stream.readline()


def _read_text(file: Path) -> Table:
    """Return paths and labels as the source file_list reads them; {} if file_list cannot."""
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
    with name_file(file), arrow_columns.open_parquet(file) as parquet:
        names = [field.name for field in parquet.schema_arrow if not _holds_bytes(field.type)]
        table = parquet.read(names, use_threads=False)
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
    """Turn JSON like {file: label} or {file: {column: value}} into a table; {} for other JSON."""
    if all(isinstance(value, dict) for value in content.values()):
        return _join_rows({"path": key} | value for key, value in content.items())
    if any(isinstance(value, (list, dict)) for value in content.values()):
        return {}
    return {"path": list(content), "label": list(map(str, content.values()))}


def _join_rows(rows: Iterable[Any]) -> Table:
    """Turn JSON objects into columns: one for each key that has a scalar value in every object."""
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
    """Return the images of a COCO file, with labels if every image has exactly one annotation."""
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


_NAMES = (
    *("label", "labels", "class", "classes", "target", "targets", "category", "species", "y"),
    *("class_name", "category_name", "label_name", "label_id", "class_id", "category_id"),
)
_FEW = 1000
"""Upper limit of classes for a column whose name does not say that it holds labels."""


@dataclass
class LabelChoice:
    """The choice of the column of labels in a table.

    Attributes:
        label: The column of labels; None if there is none.
        values: Columns whose numbers a batch gets as values, because they are no classes.
        notes: Sentences about uncertain choices, for the user.
        fault: Why the column cannot hold labels, or "".
    """

    label: str | None = None
    values: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fault: str = ""


def find_label_name(names: Iterable[str]) -> str | None:
    """Return the name that most likely belongs to a column of labels; None if none does."""
    by_name = {name.lower(): name for name in reversed(list(names))}
    return next((by_name[name] for name in _NAMES if name in by_name), None)


def choose_label(table: Mapping[str, Sequence[str]], path: str) -> LabelChoice:
    """Choose the column of labels of a table.

    Args:
        table: The columns of the table, by name.
        path: The column with the paths of the files.
    """
    others = {name: texts for name, texts in table.items() if name != path}
    label = find_label_name(others)
    if label is not None:
        return _check(label, others[label])
    few = [name for name, texts in others.items() if _holds_classes(texts)]
    # Several columns of numbers may count or measure something, or be answers to several questions.
    numbers = [name for name in few if others[name][0].isdigit()]
    few = [name for name in few if name not in numbers] or (numbers if len(numbers) == 1 else [])
    if not few:
        return LabelChoice(notes=[_explain_no_label(others)])
    names = name_some(dict.fromkeys(others[few[0]]))
    note = f"the column '{few[0]}' is taken for the labels, since it has few values ({names})"
    rest = f"; so has {' and '.join(few[1:])}." if few[1:] else "; else set data.label."
    return LabelChoice(few[0], notes=[note + rest])


def _holds_classes(texts: Sequence[str]) -> bool:
    distinct = set(texts)
    if not 2 <= len(distinct) <= min(_FEW, len(texts) // 2):
        return False
    return not holds_parts(texts) and not _find_fault(texts)


def holds_parts(texts: Sequence[str]) -> bool:
    """Return whether all texts of a column are names of parts of a data set, such as train."""
    return bool(texts) and {text.lower() for text in set(texts)} <= PART_WORDS


def _check(label: str, texts: Sequence[str]) -> LabelChoice:
    """Decide whether a column with a name such as "label" holds labels, numbers or captions."""
    fault = _find_fault(texts)
    if fault and not all(map(_is_number, texts)):
        return LabelChoice(label, fault=f"the column '{label}': {fault}")
    if fault:
        note = (
            f"the column '{label}' holds numbers that are no classes: a batch has them as values."
        )
        return LabelChoice(None, [label], [note])
    if _has_captions(texts):
        return LabelChoice(notes=[_explain_captions(label, texts)])
    return LabelChoice(label)


def _find_fault(texts: Sequence[str]) -> str:
    """Return the reason that texts cannot be labels; "" if they can."""
    try:
        labels.from_texts(texts, lambda row: f"row {row + 1:,}")
    except DataError as e:
        return str(e)
    return ""


def _explain_no_label(table: Mapping[str, Sequence[str]]) -> str:
    captions = next((name for name, texts in table.items() if _has_captions(texts)), None)
    if captions is not None:
        return _explain_captions(captions, table[captions])
    numbers = [name for name, texts in table.items() if all(map(_is_number, texts))]
    hint = f" For numbers in a batch write 'values: [{', '.join(numbers)}]'." if numbers else ""
    there = f": there are {name_some(table)}" if table else ""
    return f"no column looks like labels{there}.{hint}"


def _explain_captions(name: str, texts: Sequence[str]) -> str:
    return (
        f"the column '{name}' has {len(set(texts)):,} different texts in {len(texts):,} rows, as "
        f"captions have, and is not read; if they are names of classes, write 'label: {name}'."
    )


def _has_captions(texts: Sequence[str]) -> bool:
    """Return whether texts look like captions: over 90 % differ, most have three or more words."""
    num_long = sum(text.count(" ") >= 2 for text in texts)
    return 10 * len(set(texts)) > 9 * len(texts) and 2 * num_long > len(texts)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
