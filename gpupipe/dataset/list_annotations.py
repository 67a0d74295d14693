"""The annotations of an index, from the lists in columns of tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_building import BoxList
from gpupipe.dataset.annotation_faults import MAX_COORDINATE, UNREADABLE, FaultCollector
from gpupipe.dataset.class_names import Classes, list_class_files, read_class_names
from gpupipe.dataset.index import Index, add_annotations
from gpupipe.dataset.labels import MAX_CLASSES, Where
from gpupipe.dataset.list_columns import (
    LABELS,
    VISIBILITY,
    BadBoxes,
    ListColumn,
    find_label,
    list_annotation_specs,
    split_fields,
)
from gpupipe.dataset.shards import ShardedSource, ShardFile
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError
from gpupipe.formats.list_values import ListValues, join_lists

_VISIBILITIES = (0, 1, 2)
"""0: the point is not labelled. 1: it is hidden. 2: it is visible."""


class AnnotatedShards(ShardedSource):
    """The base of shards whose samples may have boxes and points in lists, and named classes."""

    fields: dict[str, Any]
    label: str | None = None
    classes: Classes = None
    bad_boxes: BadBoxes = "error"

    @property
    def is_labelled(self) -> bool:
        return find_label(self) is not None

    @property
    def class_names(self) -> Sequence[str]:
        return read_class_names(self.classes)

    def annotation_specs(self) -> dict[str, Spec]:
        return list_annotation_specs(self.fields)

    def find_companions(self, files: list[Path]) -> list[Path]:
        return list_class_files(self.classes)

    def join(self, files: list[Path], parts: list[list[ShardFile]]) -> Index:
        """Build the index of all samples, with the annotations that their lists hold.

        Raises:
            DataError: See `join_shards` and `annotate_index`.
        """
        index, columns = super().join(files, parts), split_fields(self.fields)[1]
        filled = [shard for shards in parts for shard in shards if shard.names]
        try:
            lists = {
                name: join_lists([shard.lists[name] for shard in filled], column.column)
                for name, column in columns.items()
            }
        except ValueError as e:
            raise DataError(f"{index.location(0)}: {e}") from e
        drops_bad = self.bad_boxes == "drop"
        return annotate_index(
            index, columns, lists, index.location, self.is_labelled, drops_bad, self.class_names
        )


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
    is_wrong = _find_wrong_rows(name, columns, lists, where, faults)
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
        elif columns[field].kind == "points":
            points = _split_points(found.values[is_kept], columns[field])
            others[field] = points[..., :2].astype(np.float32)
            if columns[field].has_visibility:
                others[VISIBILITY] = points[..., 2].astype(np.int64)
        elif field != name:
            others[field] = _convert(found.values[is_kept], field, columns[field], where, rows)
    values = np.asarray(boxes.values)[~np.repeat(is_wrong, boxes.counts)]
    listed = BoxList(
        rows,
        _to_corners(values, columns[name].format),
        lambda i: f"{where(int(rows[i]))}: box {i - firsts[rows[i]]} of '{columns[name].column}'",
        np.ones(len(rows), bool),
    )
    # The canvas of fractions is 1 x 1.
    sizes = np.ones((len(index), 2), np.int32) if columns[name].normalized else None
    of_points = [field for field, column in columns.items() if column.kind == "points"]
    built = listed.build_columns(others, len(index), sizes, faults, drops_bad, of_points)
    if has_label:
        classes = index.classes
    else:
        index = replace(index, labels=np.full(len(index), -1, np.int64))
    annotations = {name: replace(built.pop("boxes"), of=index.main)} | {
        field: replace(column, of=index.main, rows_with=name) for field, column in built.items()
    }
    for field, column in columns.items():
        annotations[field] = replace(annotations[field], is_normalized=column.normalized)
    return add_annotations(index, annotations, faults, classes)


def _find_wrong_rows(
    boxes: str,
    columns: Mapping[str, ListColumn],
    lists: Mapping[str, ListValues],
    where: Callable[[int], str],
    faults: FaultCollector,
) -> NDArray[np.bool_]:
    """Return which rows have a list that cannot be used, or fewer items than boxes, bool (N,)."""
    counts = lists[boxes].counts
    reasons: dict[int, str] = {}
    for name, found in lists.items():
        for row in np.flatnonzero(found.counts != counts).tolist():
            reasons[row] = f"{counts[row]} {boxes}, but {found.counts[row]} of '{name}'"
        if columns[name].kind == "points":
            reasons |= _find_bad_points(found, columns[name])
    for found in lists.values():
        reasons |= found.faults
    rows = np.array(sorted(reasons), np.int64)
    faults.add(UNREADABLE, rows, lambda n: f"{where(int(rows[n]))}: {reasons[int(rows[n])]}")
    is_wrong = np.zeros(len(counts), bool)
    is_wrong[rows] = True
    return is_wrong


def _split_points(values: NDArray[Any], column: ListColumn) -> NDArray[Any]:
    """Return the points of each item: (M, count, 2), or (M, count, 3) with their visibility."""
    return values.reshape(len(values), column.count or 0, column.place.group)


def _find_bad_points(found: ListValues, column: ListColumn) -> dict[int, str]:
    """Return what is wrong with the points of some rows, by row."""
    points = _split_points(np.asarray(found.values), column)
    is_bad = ~(np.abs(points[..., :2]) <= MAX_COORDINATE).all(-1)  # True for NaN
    if column.has_visibility:
        is_bad |= ~np.isin(points[..., 2], _VISIBILITIES)
    row_of = np.repeat(np.arange(len(found.counts)), found.counts)
    reasons = {}
    for item, number in np.argwhere(is_bad)[::-1].tolist():
        numbers = ", ".join(f"{value:g}" for value in points[item, number])
        reasons[int(row_of[item])] = (
            f"'{column.column}': [{numbers}] is no point: coordinates are finite, and below 2**24"
            + (", and visibility is 0, 1 or 2" if column.has_visibility else "")
        )
    return reasons


def _convert(
    values: NDArray[Any], name: str, column: ListColumn, where: Where, rows: NDArray[np.int64]
) -> NDArray[Any]:
    """Return numbers that go with boxes, (M,), in the dtype that their column sets.

    Raises DataError if the column sets int64, and a number is not whole.
    """
    if column.dtype != "int64":  # the numbers of `iscrowd` become whole when they are delivered
        return values.astype(np.float32)
    wrong = np.flatnonzero(~((np.abs(values) < 2**63) & (values == np.floor(values))))
    if len(wrong):
        raise DataError(
            f"{where(int(rows[wrong[0]]))}: '{column.column}' holds {values[wrong[0]]:g}, and the "
            f"dtype of '{name}' is int64: leave dtype out"
        )
    return values.astype(np.int64)


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
