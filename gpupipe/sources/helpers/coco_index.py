"""Builds the index of COCO annotation files: groups annotations by image, and checks them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_building import BoxList
from gpupipe.dataset.annotation_columns import offsets_of
from gpupipe.dataset.annotation_faults import (
    MAX_COORDINATE,
    NOT_FINITE,
    UNKNOWN_CLASS,
    UNREADABLE,
    FaultCollector,
)
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.labels import MAX_CLASSES
from gpupipe.errors import DataError, counted
from gpupipe.formats.coco import CocoFile
from gpupipe.formats.coco_records import CocoAnnotations, join_annotations


@dataclass(frozen=True)
class CocoPart:
    """An annotation file.

    Attributes:
        path: The file.
        content: Its content.
        names: The paths of its images, relative to the root.
    """

    path: Path
    content: CocoFile
    names: list[str]


@dataclass(frozen=True)
class CocoChoices:
    """How annotations are read; the source documents its options.

    Attributes:
        keeps_ids: Whether labels are the ids of categories.
        drops_crowds: Whether annotations of crowds are left out.
        drops_empty: Whether images without annotations are left out.
        drops_bad_boxes: Whether boxes without area, or outside of their image, are left out.
        has_keypoints: Whether there are keypoints.
    """

    keeps_ids: bool
    drops_crowds: bool
    drops_empty: bool
    drops_bad_boxes: bool
    has_keypoints: bool


def build_coco_index(root: str, parts: Sequence[CocoPart], choices: CocoChoices) -> Index:
    """Build the index of the images of all files.

    Args:
        root: The folder of the images.
        parts: The files. All have the same categories.
        choices: How annotations are read.

    Raises:
        DataError: Two images have the same id or path, a category's id is no label, or no image is
            left.
    """
    names = [name for part in parts for name in part.names]
    _check_names(parts, names)
    image_ids = np.concatenate([part.content.image_ids for part in parts])
    sizes = np.concatenate([part.content.sizes for part in parts])
    places = _Places(parts)
    faults, counts = FaultCollector(), Counter[str]()
    found, rows = _find_rows(parts, places, faults)
    is_used = rows >= 0
    unknown = found.records[~is_used]
    counts["annotations"] = sum(part.content.num_annotations for part in parts)
    counts["of images that are not listed"] = len(unknown)
    if choices.drops_crowds:
        is_used &= ~found.is_crowd
        counts["of crowds, left out"] = len(found) - len(unknown) - int(is_used.sum())
    boxes = BoxList(rows, found.boxes, lambda i: places.name(int(found.records[i])), is_used)
    category_ids = _check_categories(parts[0], choices)
    labels, is_known = find_ids(category_ids, found.category_ids)
    boxes = boxes.add_faults(
        UNKNOWN_CLASS,
        ~is_known,
        lambda i: f"no category has the id {found.category_ids[i]}",
        faults,
    )
    is_finite = (found.area >= 0) & (found.area <= MAX_COORDINATE**2)
    is_finite &= (np.abs(found.keypoints) <= (MAX_COORDINATE, MAX_COORDINATE, 2)).all((1, 2))
    boxes = boxes.add_faults(
        NOT_FINITE,
        ~is_finite,
        lambda i: (
            f"its area of {found.area[i]:g}, a keypoint or a visibility is negative, infinite or "
            "huge"
        ),
        faults,
    )
    others: dict[str, NDArray[Any]] = {
        "labels": (found.category_ids if choices.keeps_ids else labels).astype(np.int32),
        "area": found.area,
        "iscrowd": found.is_crowd,
    }
    if choices.has_keypoints:
        visibility = np.where(is_finite[:, None], found.keypoints[..., 2], 0).astype(np.uint8)
        others |= {"keypoints": found.keypoints[..., :2], "visibility": visibility}
    columns = boxes.build_columns(
        others, len(names), sizes, faults, choices.drops_bad_boxes, points=("keypoints",)
    )
    index = build(
        root,
        names,
        None,
        _name_classes(parts[0].content, choices.keeps_ids),
        extra=_describe(parts[0].content, category_ids, counts, faults),
        values={"image_id": image_ids},
        annotations=columns,
        sizes={"image": sizes} if sizes.all() else {},
    )
    warning = _explain_unknown(places, unknown) if len(unknown) else ""
    index = replace(index, faults=faults.join(), warning=warning)
    return _drop_empty(index) if choices.drops_empty else index


class _Places:
    """Numbers the annotations of all files consecutively, and names them in messages."""

    def __init__(self, parts: Sequence[CocoPart]) -> None:
        self._paths = [part.path for part in parts]
        ends = [part.content.num_annotations for part in parts]
        self.starts = np.cumsum([0, *ends])

    def name(self, number: int) -> str:
        """Return FILE: annotations[RECORD]."""
        part = int(np.searchsorted(self.starts, number, "right")) - 1
        return f"{self._paths[part]}: annotations[{number - self.starts[part]}]"


def _find_rows(
    parts: Sequence[CocoPart], places: _Places, faults: FaultCollector
) -> tuple[CocoAnnotations, NDArray[np.int64]]:
    """Return the annotations of all files with consecutive records, and the row of each's image.

    The row is -1 if the file does not list the image. Annotations that cannot be read are added to
    `faults`.
    """
    every, rows, first = [], [], 0
    for number, part in enumerate(parts):
        content, start = part.content, int(places.starts[number])
        found, is_listed = find_ids(content.image_ids, content.annotations.image_ids)
        rows.append(np.where(is_listed, found + first, -1))
        records = content.annotations.records
        every.append(replace(content.annotations, records=records + start))
        bad, is_bad_listed = find_ids(
            content.image_ids, np.array([fault.image_id for fault in content.faults], np.int64)
        )
        reasons = [
            f"{places.name(fault.record + start)}: {fault.reason}"
            for fault, is_there in zip(content.faults, is_bad_listed, strict=True)
            if is_there
        ]
        faults.add(UNREADABLE, bad[is_bad_listed] + first, reasons.__getitem__)
        first += len(part.names)
    return (
        (every[0], rows[0]) if len(parts) == 1 else (join_annotations(every), np.concatenate(rows))
    )


def find_ids(
    ids: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find numbers in an array without duplicates.

    Returns:
        The position in `ids` of each number in `wanted`, int64 (M,), and whether it is there.
    """
    if not len(ids):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    order = np.argsort(ids, kind="stable")
    positions = np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)
    positions = order[positions]
    return positions, ids[positions] == wanted


def _check_names(parts: Sequence[CocoPart], names: list[str]) -> None:
    """Raise DataError if two images of a file have the same id, or any two the same path."""
    for part in parts:
        ids, positions = np.unique(part.content.image_ids, return_index=True)
        if len(ids) < len(part.names):
            again = int(np.setdiff1d(np.arange(len(part.names)), positions)[0])
            raise DataError(
                f"{part.path}: images[{again}]: another image has the id "
                f"{part.content.image_ids[again]}, too"
            )
    if len(set(names)) == len(names):
        return
    first_of: dict[str, str] = {}
    for part in parts:
        for number, name in enumerate(part.names):
            place = f"{part.path}: images[{number}]"
            if name in first_of:
                raise DataError(
                    f"{place}: {name} is listed before, as {first_of[name]}: list each image in "
                    "one file, once"
                )
            first_of[name] = place


def _check_categories(part: CocoPart, choices: CocoChoices) -> NDArray[np.int64]:
    """Return the ids of the categories. Raises DataError if they shall be labels, and cannot."""
    ids = np.array(list(part.content.categories), np.int64)
    if choices.keeps_ids and len(ids) and not 0 <= ids[0] <= ids[-1] < MAX_CLASSES:
        raise DataError(
            f"{part.path}: the ids of categories are {ids[0]} to {ids[-1]}, and labels are 0 to "
            f"{MAX_CLASSES - 1:,}: set data.classes to contiguous"
        )
    return ids


def _name_classes(content: CocoFile, keeps_ids: bool) -> list[str]:
    """Return the name of each label; "" for ids between those of categories."""
    names = {number: c.name or str(number) for number, c in content.categories.items()}
    if not keeps_ids:
        return list(names.values())
    return [names.get(number, "") for number in range(max(names, default=-1) + 1)]


def _describe(
    content: CocoFile, ids: NDArray[np.int64], counts: Counter[str], faults: FaultCollector
) -> dict[str, Any]:
    """Return what is saved beside the columns; see `Index.extra`."""
    with_points = [c for c in content.categories.values() if c.keypoints]
    skeletons = [c.skeleton for c in with_points if c.skeleton]
    return {
        "category_ids": ids.tolist(),
        "keypoint_names": list(with_points[0].keypoints) if with_points else [],
        "skeleton": [[a - 1, b - 1] for a, b in (skeletons or [()])[0]],
        "annotation_counts": dict(counts),
        "annotation_faults": faults.counts,
    }


def _explain_unknown(places: _Places, unknown: NDArray[np.int64]) -> str:
    return (
        f"{places.name(int(unknown[0]))}: its image is not listed in 'images': "
        f"{counted(len(unknown), 'such annotation')} left out"
    )


def _drop_empty(index: Index) -> Index:
    """Return the index without images that have no annotations; raise DataError if all are."""
    is_kept = np.diff(offsets_of(index.annotations, "boxes")) > 0
    is_kept[index.faults.rows] = True
    if not is_kept.any():
        raise DataError(f"{index.root}: no image has annotations: set data.empty to keep")
    return replace(index.subset(np.flatnonzero(is_kept)), extra=index.extra)
