"""Builds the columns of boxes and what goes with them, from one long list of annotations."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.annotation_faults import (
    MAX_COORDINATE,
    NO_AREA,
    NOT_FINITE,
    FaultCollector,
    Where,
    find_bad_boxes,
)
from gpupipe.dataset.columns import Rows

_ADVICE = "(data.bad_boxes=drop leaves out such boxes)"


@dataclass(frozen=True)
class BoxList:
    """M boxes of N samples, in any order.

    Attributes:
        rows: The row of each box's sample, int64 (M,).
        boxes: [left, top, right, bottom] in pixels, (M, 4).
        where: Maps the number of a box to its place, for messages.
        is_used: Whether each box is used, bool (M,). The others are left out without a message.
    """

    rows: Rows
    boxes: NDArray[Any]
    where: Where
    is_used: NDArray[np.bool_]

    def add_faults(
        self, kind: str, is_wrong: NDArray[np.bool_], reason: Where, faults: FaultCollector
    ) -> "BoxList":
        """Return the list without the boxes that are wrong, which are added to `faults`.

        Args:
            kind: The kind of fault.
            is_wrong: Whether each box is wrong, bool (M,).
            reason: Maps the number of a box to what is wrong with it.
            faults: Gets the boxes that are used and wrong.
        """
        wrong = np.flatnonzero(self.is_used & is_wrong)
        faults.add(
            kind,
            self.rows[wrong],
            lambda n: f"{self.where(int(wrong[n]))}: {reason(int(wrong[n]))}",
        )
        return replace(self, is_used=self.is_used & ~is_wrong)

    def build_columns(
        self,
        others: Mapping[str, NDArray[Any]],
        count: int,
        sizes: NDArray[np.int32] | None,
        faults: FaultCollector,
        drops_bad: bool,
        points: Collection[str] = (),
    ) -> dict[str, AnnotationColumn]:
        """Check the boxes, group them by sample, and return the columns of an index.

        Args:
            others: What goes with each box, (M, ...), by field.
            count: The number N of samples.
            sizes: [height, width] of each sample's image in pixels, int32 (N, 2), 0 if it is not
                known; None if none is known.
            faults: Gets the boxes that cannot be used.
            drops_bad: Whether boxes without area, or outside of their image, are only counted, and
                are no faults of their samples.
            points: The fields in `others` that are points.
        """
        used = self._find_good_boxes(sizes, faults, drops_bad)
        rows = self.rows[used]
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
        if (rows[1:] < rows[:-1]).any():
            used = used[np.argsort(rows, kind="stable")]
        boxes = self.boxes[used].astype(np.float32, copy=False)
        columns = {"boxes": AnnotationColumn("boxes", "image", "", boxes, offsets)}
        for name, values in others.items():
            kind = "points" if name in points else "array"
            columns[name] = AnnotationColumn(kind, "image", "boxes", values[used], None)
        return columns

    def _find_good_boxes(
        self, sizes: NDArray[np.int32] | None, faults: FaultCollector, drops_bad: bool
    ) -> NDArray[np.int64]:
        """Return the numbers of the used boxes that have area and are on their image."""
        used = np.flatnonzero(self.is_used)
        is_good = np.ones(len(used), bool)
        of_box = None if sizes is None else sizes[self.rows[used]]
        for kind, positions in find_bad_boxes(self.boxes[used], of_box):
            is_good[positions] = False
            numbers = used[positions]

            def explain(n: int, kind: str = kind, numbers: NDArray[np.int64] = numbers) -> str:
                return self._explain(kind, int(numbers[n]), sizes)

            if drops_bad and kind != NOT_FINITE:
                faults.count(kind, len(numbers), explain)
            else:
                faults.add(kind, self.rows[numbers], explain)
        return used[is_good]

    def _explain(self, kind: str, number: int, sizes: NDArray[np.int32] | None) -> str:
        coordinates = ", ".join(f"{float(value):g}" for value in self.boxes[number])
        box = f"{self.where(number)}: the box [{coordinates}] (left, top, right, bottom)"
        if kind == NOT_FINITE:
            return f"{box} is not finite, or beyond {MAX_COORDINATE:,.0f}"
        if kind == NO_AREA or sizes is None:
            return f"{box} has no area {_ADVICE}"
        height, width = sizes[self.rows[number]].tolist()
        return f"{box} lies outside of its image of {width} x {height} pixels {_ADVICE}"
