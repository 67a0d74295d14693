"""Annotations: the boxes, points and further rows on one image of each sample of a batch.

    boxes       [l t r b] [l t r b] | | [l t r b]      float64 (sum N, 4)
    labels          3         7     | |     3          the rows that go with them
    samples         0         0     |1|     2          int64 (sum N,)

A step reads them as `image.annotations` in `Step.decide` and `Step.lower`. Arrays hold the rows of
all samples of the batch. A step changes only rows of the samples in `image.present`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_columns import AnnotationColumn, offsets_of
from gpupipe.dataset.spec import Spec

Floats = NDArray[np.float64]
BoxFormat = Literal["XYXY", "XYWH", "CXCYWH"]


@dataclass(frozen=True)
class _Rows:
    """The rows that several fields share.

    Attributes:
        samples: The sample of each row, its position in the batch, int64 (sum N,), ascending.
        positions: Which of the rows before the first step each row is, int64 (sum N,).
    """

    samples: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def of(cls, offsets: NDArray[np.int64]) -> "_Rows":
        counts = np.diff(offsets)
        return cls(np.repeat(np.arange(len(counts)), counts), np.arange(int(offsets[-1])))


class Annotations:
    """The annotations on one field of images, for all samples of a batch.

    Args:
        columns: The rows of the samples of the batch, by field.
        specs: The spec of each field.
        count: The number of samples.

    Attributes:
        specs: The spec of each field.
        clamps: bool (B,), whether steps clamp boxes to the canvas, as torchvision's clamping modes
            "soft" and "hard" do; False is its mode None.
        format: The format in which boxes are delivered. Steps see them as XYXY.
    """

    def __init__(
        self, columns: Mapping[str, AnnotationColumn], specs: Mapping[str, Spec], count: int
    ) -> None:
        self.specs, self.clamps = dict(specs), np.ones(count, bool)
        self.format: BoxFormat = "XYXY"
        self._count = count
        self._rows: dict[str, _Rows] = {}
        self._first: dict[str, NDArray[Any]] = {}
        """The values of each field before the first step."""
        self._values: dict[str, NDArray[Any]] = {}
        """The current values of the fields that steps change: coordinates and visibility."""
        for name, spec in specs.items():
            column = columns[name]
            self._first[name] = column.values
            if column.offsets is not None:
                self._rows[name] = _Rows.of(offsets_of(columns, name))
            if spec.kind in ("boxes", "points"):
                self._values[name] = column.values.astype(np.float64)
            elif spec.annotation is not None and spec.annotation.visibility_of:
                self._values[name] = column.values.copy()

    def names(self, kind: str) -> list[str]:
        """Return the names of the fields of a kind: "boxes", "points" or "array"."""
        return [name for name, spec in self.specs.items() if spec.kind == kind]

    def values(self, name: str) -> NDArray[Any]:
        """Return the current rows of a field: float64 (sum N, 4) for boxes. Do not change them."""
        if name in self._values:
            return self._values[name]
        values: NDArray[Any] = self._first[name][self._of(name).positions]
        return values

    def stored(self, name: str) -> NDArray[Any]:
        """Return the current rows of a field with their values before the first step."""
        values: NDArray[Any] = self._first[name][self._of(name).positions]
        return values

    def samples(self, name: str) -> NDArray[np.int64]:
        """Return the position in the batch of the sample of each row, int64 (sum N,), ascending."""
        return self._of(name).samples

    def offsets(self, name: str) -> NDArray[np.int64]:
        """Return where the rows of each sample begin, int64 (B + 1,)."""
        return np.searchsorted(self.samples(name), np.arange(self._count + 1))

    def replace(self, name: str, values: NDArray[Any]) -> None:
        """Replace the coordinates of a field of boxes or points, or the visibility of points."""
        assert name in self._values and values.shape == self._values[name].shape
        self._values[name] = values

    def keep(self, name: str, is_kept: NDArray[np.bool_]) -> None:
        """Keep some rows of a field, and the same rows of all fields that go with it.

        Args:
            name: The field.
            is_kept: Whether each row is kept, bool (sum N,). True for all rows of the samples that
                the step leaves alone.
        """
        if is_kept.all():
            return
        owner = self.owner(name)
        rows = self._rows[owner]
        self._rows[owner] = _Rows(rows.samples[is_kept], rows.positions[is_kept])
        for other in self._values:
            if self.owner(other) == owner:
                self._values[other] = self._values[other][is_kept]

    def owner(self, name: str) -> str:
        """Return the field whose rows a field shares; a field with rows of its own is its own."""
        annotation = self.specs[name].annotation
        return (annotation and annotation.rows_with) or name

    def visibility(self, name: str) -> str | None:
        """Return the field with the visibility of the points in field `name`, or None."""
        for other, spec in self.specs.items():
            if spec.annotation is not None and spec.annotation.visibility_of == name:
                return other
        return None

    def fork(self) -> "Annotations":
        """Return a copy for the steps of a view. It shares no array that a step may change."""
        copy: Annotations = object.__new__(Annotations)
        vars(copy).update(vars(self))
        copy.clamps = self.clamps.copy()
        copy._rows, copy._values = dict(self._rows), dict(self._values)
        return copy

    def delivered(self, name: str) -> NDArray[Any]:
        """Return the rows of a field as a batch has them: in their format and dtype."""
        values, spec = self.values(name), self.specs[name]
        if spec.kind == "boxes":
            values = convert_boxes(values, self.format)
        return np.ascontiguousarray(values.astype(spec.dtype, copy=False))

    def _of(self, name: str) -> _Rows:
        return self._rows[self.owner(name)]


def convert_boxes(boxes: Floats, format: BoxFormat) -> Floats:
    """Convert boxes XYXY, (..., 4), to another format."""
    if format == "XYXY":
        return boxes
    first, size = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
    start = first if format == "XYWH" else (first + boxes[..., 2:]) / 2.0
    return np.concatenate([start, size], -1)
