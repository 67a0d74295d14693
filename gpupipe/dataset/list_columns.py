"""Columns of lists in the tables of sources: their settings, and the annotations made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gpupipe.dataset.annotation_building import BoxList
from gpupipe.dataset.annotation_faults import UNREADABLE, FaultCollector
from gpupipe.dataset.index import Index, add_annotations
from gpupipe.dataset.labels import MAX_CLASSES, Where
from gpupipe.dataset.shards import ShardFile
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError
from gpupipe.formats.list_values import ListValues, join_lists

T = TypeVar("T")
BadBoxes = Literal["error", "drop"]
LABELS = "labels"
"""The field whose texts are names of classes."""
_WHOLE = (LABELS, "iscrowd")
"""The fields whose numbers are delivered as int64."""


class ListColumn(pydantic.BaseModel):
    """A field with a list in each row: boxes, or what goes with each box.

    Attributes:
        column: The column with the lists. "objects.bbox" is `bbox` in the struct, or in each struct
            of the list, that the column `objects` holds.
        kind: "boxes" for a column of boxes, four numbers each.
        format: What the numbers of a box are: xyxy: left, top, right, bottom. xywh: left, top,
            width, height. cxcywh: the center, width, height.
        normalized: Whether the numbers of boxes are fractions of the image's width and height. By
            default they are pixels.
        with_: The field of boxes that has a box for each item of this column; `with` in the YAML.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    column: str = Field(min_length=1)
    kind: Literal["boxes"] | None = None
    format: Literal["xyxy", "xywh", "cxcywh"] | None = None
    normalized: bool = False
    with_: str = Field(default="", alias="with")

    @pydantic.model_validator(mode="after")
    def _is_boxes_or_goes_with_them(self) -> ListColumn:
        if self.kind == "boxes" and (self.format is None or self.with_):
            raise ValueError("a column of boxes has a format, xyxy, xywh or cxcywh, and no 'with'")
        if self.kind is None and (not self.with_ or self.format or self.normalized):
            raise ValueError(
                "a column of lists has 'kind: boxes' and a format, or 'with' and the name of the "
                "field of boxes"
            )
        return self

    @property
    def place(self) -> tuple[str, int]:
        """The path of the column, and the length of each item; 0 for single numbers or texts."""
        return self.column, 4 if self.kind == "boxes" else 0


def split_fields(
    fields: Mapping[str, T | ListColumn],
) -> tuple[dict[str, T], dict[str, ListColumn]]:
    """Return the fields of files or arrays, and those of lists."""
    lists = {name: field for name, field in fields.items() if isinstance(field, ListColumn)}
    others = {name: field for name, field in fields.items() if not isinstance(field, ListColumn)}
    return others, lists


def check_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields. Raises ValueError if the fields of lists do not fit each other."""
    columns = split_fields(fields)[1]
    boxes = [name for name, column in columns.items() if column.kind == "boxes"]
    for name, column in columns.items():
        if column.with_ and column.with_ not in boxes:
            raise ValueError(f"{name}: 'with' is '{column.with_}', which is no field of boxes")
    if len(boxes) > 1:
        raise ValueError(f"{' and '.join(boxes)} are boxes: a source has one field of boxes")
    return fields


Fields = Annotated[dict[str, str | ListColumn], AfterValidator(check_fields)]
"""The fields of a source whose places are columns or members of a table."""


def find_label(source: Any) -> str | None:
    """Return the option `label` of a source; None if it is not set and there are lists.

    Images with boxes seldom have a class of their own.
    """
    has_lists = bool(split_fields(source.fields)[1])
    label: str | None = source.label
    return None if has_lists and "label" not in source.model_fields_set else label


def list_annotation_specs(fields: Mapping[str, Any], image: str = "") -> dict[str, Spec]:
    """Return the spec of each field of annotations.

    Args:
        fields: The fields of a source.
        image: The field of the image that the boxes are on; by default the first of `fields`.
    """
    others, columns = split_fields(fields)
    image = image or next(iter(others))
    return {
        name: Spec.of_boxes(image)
        if column.kind == "boxes"
        else Spec.of_rows("int64" if name in _WHOLE else "float32", image, column.with_)
        for name, column in columns.items()
    }


def annotate_index(
    index: Index,
    columns: Mapping[str, ListColumn],
    lists: Mapping[str, ListValues],
    where: Callable[[int], str],
    has_label: bool,
    drops_bad: bool,
    class_names: Sequence[str] = (),
) -> Index:
    """Return the index with the annotations that columns of lists hold.

    Args:
        index: The index of N samples without annotations.
        columns: The columns by field; one of them has boxes.
        lists: The lists of the N samples, by field.
        where: Maps the row of a sample to its place, for messages.
        has_label: Whether each sample has a class of its own, too.
        drops_bad: Whether boxes without area, or outside of their image, are left out.
        class_names: The names of the classes, if labels are numbers and the table names them.

    Raises:
        DataError: Labels are no numbers of classes, or a field other than `labels` holds texts.
    """
    if not columns:
        return index
    name = next(name for name, column in columns.items() if column.kind == "boxes")
    faults, boxes = FaultCollector(), lists[name]
    is_wrong = _find_wrong_rows(name, lists, where, faults)
    counts = np.where(is_wrong, 0, boxes.counts)
    rows = np.repeat(np.arange(len(index)), counts)
    firsts = np.cumsum(counts) - counts
    others: dict[str, NDArray[Any]] = {}
    classes = index.classes
    for field, found in lists.items():
        is_kept = ~np.repeat(is_wrong, found.counts)
        if field == LABELS:
            others[field], classes = _number_labels(found, is_kept, class_names, where, rows)
        elif isinstance(found.values, list):
            raise DataError(
                f"{where(0)}: '{columns[field].column}' holds texts, which the field '{LABELS}' "
                f"alone may: leave out '{field}'"
            )
        elif field != name:
            others[field] = found.values[is_kept].astype(np.float32)
    values = np.asarray(boxes.values)[~np.repeat(is_wrong, boxes.counts)]
    listed = BoxList(
        rows,
        _to_corners(values, columns[name].format),
        lambda i: f"{where(int(rows[i]))}: box {i - firsts[rows[i]]} of '{columns[name].column}'",
        np.ones(len(rows), bool),
    )
    # The canvas of fractions is 1 x 1.
    sizes = np.ones((len(index), 2), np.int32) if columns[name].normalized else None
    built = listed.build_columns(others, len(index), sizes, faults, drops_bad)
    built[name] = replace(built.pop("boxes"), of=index.main, is_normalized=columns[name].normalized)
    if has_label:
        classes = index.classes
    else:
        index = replace(index, labels=np.full(len(index), -1, np.int64))
    annotations = {
        field: built[field]
        if field == name
        else replace(built[field], of=index.main, rows_with=name)
        for field in columns
    }
    return add_annotations(index, annotations, faults, classes)


def annotate_shards(index: Index, source: Any, shards: Sequence[ShardFile]) -> Index:
    """Return the index of shards with the annotations that their columns of lists hold.

    Args:
        index: The index of all samples.
        source: The source, with `fields`, `label` and `bad_boxes`.
        shards: What was read from the shards, in order.

    Raises:
        DataError: See `annotate_index`.
    """
    columns, filled = split_fields(source.fields)[1], [shard for shard in shards if shard.names]
    try:
        lists = {
            name: join_lists([shard.lists[name] for shard in filled], column.column)
            for name, column in columns.items()
        }
    except ValueError as e:
        raise DataError(f"{index.location(0)}: {e}") from e
    has_label, drops_bad = find_label(source) is not None, source.bad_boxes == "drop"
    return annotate_index(index, columns, lists, index.location, has_label, drops_bad)


def _find_wrong_rows(
    boxes: str, lists: Mapping[str, ListValues], where: Callable[[int], str], faults: FaultCollector
) -> NDArray[np.bool_]:
    """Return which rows have a list that cannot be used, or fewer items than boxes, bool (N,)."""
    counts = lists[boxes].counts
    reasons: dict[int, str] = {}
    for name, found in lists.items():
        for row in np.flatnonzero(found.counts != counts).tolist():
            reasons[row] = f"{counts[row]} {boxes}, but {found.counts[row]} of '{name}'"
    for found in lists.values():
        reasons |= found.faults
    rows = np.array(sorted(reasons), np.int64)
    faults.add(UNREADABLE, rows, lambda n: f"{where(int(rows[n]))}: {reasons[int(rows[n])]}")
    is_wrong = np.zeros(len(counts), bool)
    is_wrong[rows] = True
    return is_wrong


def _number_labels(
    found: ListValues,
    is_kept: NDArray[np.bool_],
    class_names: Sequence[str],
    where: Where,
    rows: NDArray[np.int64],
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the number of each label, int64 (M,), and the names of the classes.

    Texts are numbered in sorted order. Raises DataError if a number or a text is no class.
    """
    if isinstance(found.values, list):
        names = sorted(set(found.values))
        if names and not names[0]:
            row = np.repeat(np.arange(len(found.counts)), found.counts)[found.values.index("")]
            raise DataError(f"{where(int(row))}: a label is an empty text, which names no class")
        number_of = {name: number for number, name in enumerate(names)}
        numbers = np.array([number_of[text] for text in found.values], np.int64)
        return numbers[is_kept], names
    values = found.values[is_kept]
    wrong = np.flatnonzero(~((values >= 0) & (values < MAX_CLASSES) & (values == np.floor(values))))
    if len(wrong):
        raise DataError(
            f"{where(int(rows[wrong[0]]))}: the label {values[wrong[0]]:g} is no class: labels are "
            f"names, or whole numbers from 0 on, below {MAX_CLASSES:,}"
        )
    count = int(values.max(initial=-1)) + 1
    names = list(class_names) if len(class_names) >= count else [str(n) for n in range(count)]
    return values.astype(np.int64), names


def _to_corners(boxes: NDArray[Any], format: str | None) -> NDArray[np.float64]:
    """Convert boxes (M, 4) of a format to [left, top, right, bottom]."""
    with np.errstate(all="ignore"):
        first, last = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
        if format == "xywh":
            last = first + last
        elif format == "cxcywh":
            first, last = first - last / 2, first + last / 2
        return np.concatenate([first, last], 1)
