"""Finds annotations that cannot be used, and keeps which samples they belong to.

A sample with such an annotation is a broken sample, as one whose image cannot be decoded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Rows, StringArray, join_strings

UNREADABLE = "cannot be read"
UNKNOWN_CLASS = "unknown class"
NOT_FINITE = "a number that is not finite, or beyond 2**24"
NO_AREA = "a box without area"
OUTSIDE = "a box outside of its image"
MAX_COORDINATE = float(2**24)
"""Up to here float32 holds whole pixels."""
Where = Callable[[int], str]
"""A function that maps an annotation's number to its place, such as FILE: annotations[17]."""


@dataclass(frozen=True)
class Faults:
    """The samples of an index whose annotations cannot be used.

    Attributes:
        rows: The rows of these samples, ascending, int64 (k,).
        reasons: Why the annotations of each cannot be used, with the place of the first wrong one.
    """

    rows: NDArray[np.int64]
    reasons: StringArray

    @classmethod
    def none(cls) -> "Faults":
        """Return the faults of an index without any."""
        return cls(np.empty(0, np.int64), StringArray.from_strings([]))

    def __len__(self) -> int:
        return len(self.rows)

    def explain(self, row: int) -> str:
        """Return why the annotations of a row cannot be used; "" if they can."""
        position = int(np.searchsorted(self.rows, row))
        is_there = position < len(self.rows) and int(self.rows[position]) == row
        return self.reasons[position] if is_there else ""

    def is_consistent(self, count: int) -> bool:
        """Return whether the rows are in ascending order, and rows of `count` samples."""
        bounded = np.concatenate([[-1], self.rows, [count]])
        return len(self.rows) == len(self.reasons) and bool((np.diff(bounded) > 0).all())

    def take(self, rows: Rows) -> "Faults":
        """Return the faults of an index that has only the given rows, in the order of `rows`."""
        if not len(self):
            return self
        positions = np.minimum(np.searchsorted(self.rows, rows), len(self) - 1)
        kept = np.flatnonzero(self.rows[positions] == rows)
        return Faults(kept, self.reasons.take(positions[kept]))


def join_faults(parts: Sequence[Faults], starts: Sequence[int]) -> Faults:
    """Concatenate the faults of several indexes; `starts` has the first row of each."""
    rows = [part.rows + start for part, start in zip(parts, starts, strict=True)]
    return Faults(np.concatenate(rows), join_strings([part.reasons for part in parts]))


class FaultCollector:
    """Collects faults while an index is built.

    Attributes:
        counts: For each kind of fault, the number of annotations with it, and the place and content
            of the first. Plain JSON, which an index may save in `extra`.
    """

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, str]] = {}
        self._reason_of: dict[int, str] = {}

    def add(self, kind: str, rows: Rows, explain: Callable[[int], str]) -> None:
        """Add the annotations that have one kind of fault.

        Args:
            kind: The kind of fault.
            rows: The row of each annotation's sample, int64 (n,).
            explain: Takes the position of an annotation in `rows`, and returns what is wrong and
                where.
        """
        self.count(kind, len(rows), explain)
        every, positions = np.unique(rows, return_index=True)
        for row, position in zip(every.tolist(), positions.tolist(), strict=True):
            if row not in self._reason_of:
                self._reason_of[row] = explain(position)

    def count(self, kind: str, number: int, explain: Callable[[int], str]) -> None:
        """Count annotations that are left out, without a fault of their samples."""
        if number:
            count, first = self.counts.get(kind, (0, ""))
            self.counts[kind] = count + number, first or explain(0)

    def join(self) -> Faults:
        """Return the faults of all samples, the first of each."""
        rows = sorted(self._reason_of)
        texts = StringArray.from_strings(self._reason_of[row] for row in rows)
        return Faults(np.array(rows, np.int64), texts)


def find_bad_boxes(
    boxes: NDArray[Any], sizes: NDArray[np.int32] | None
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the kinds of faults of boxes, with the positions of the boxes that have them.

    A box that is partly outside of its image is no fault: steps clamp it.

    Args:
        boxes: [left, top, right, bottom] in pixels, (M, 4).
        sizes: [height, width] of each box's image in pixels, (M, 2), 0 if it is not known; None if
            none is known.
    """
    is_finite = (np.abs(boxes) <= MAX_COORDINATE).all(1)  # False for NaN
    yield NOT_FINITE, np.flatnonzero(~is_finite)
    has_area = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    yield NO_AREA, np.flatnonzero(is_finite & ~has_area)
    if sizes is not None:
        height, width = np.where(sizes > 0, sizes, np.inf).T
        is_inside = (boxes[:, 0] < width) & (boxes[:, 1] < height)
        is_inside &= (boxes[:, 2] > 0) & (boxes[:, 3] > 0)
        yield OUTSIDE, np.flatnonzero(is_finite & has_area & ~is_inside)
