"""Canvas: moves boxes and points with the image that they are on, for a whole batch.

The conventions are those of torchvision.transforms.v2.functional:

- A box is the hull of its four corners after a move. It is clamped to the canvas after each move
  that may take it across the border, unless its clamping mode is None.
- A flip maps x of a box to W - x, and x of a point to W - 1 - x: points count from the centres of
  pixels.
- A point outside the canvas keeps its coordinates, and its visibility becomes 0.

All arithmetic is element by element in float64. So the numbers of a sample do not depend on the
samples beside it: a matrix product may round differently in a larger batch.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.pipeline.annotations import Annotations, Floats

_CORNERS = np.array([[0, 1], [2, 1], [2, 3], [0, 3]])
"""Positions of [x, y] of the four corners in a box [left, top, right, bottom]."""

Present = NDArray[np.bool_]
"""Whether a move applies to each sample, bool (B,)."""


class Canvas:
    """The images of a batch as canvases with boxes and points, without their pixels.

    Args:
        annotations: The boxes and points. Moves change them.
        size: [height, width] of each image, float64 (B, 2).

    Attributes:
        annotations: The boxes and points at this point.
        size: [height, width] of each image at this point, float64 (B, 2).
        is_affine: Whether all moves so far are affine, whatever was drawn.
        num_moves: How many moves there were so far.
    """

    def __init__(self, annotations: Annotations, size: Floats) -> None:
        self.annotations = annotations
        self.size = np.array(size, np.float64)
        self.is_affine, self.num_moves = True, 0
        self._matrix = np.zeros((len(size), 3, 3))
        """The map from the first image to this one in homogeneous [x, y, 1]."""
        self._matrix[:, range(3), range(3)] = 1.0

    def fork(self) -> "Canvas":
        """Return a copy that shares no array that a move changes."""
        copy: Canvas = object.__new__(Canvas)
        vars(copy).update(vars(self))
        copy.annotations = self.annotations.fork()
        copy.size, copy._matrix = self.size.copy(), self._matrix.copy()
        return copy

    def to_original(self) -> Floats | None:
        """Return the maps from the current image to the first one, float64 (B, 3, 3).

        None if a move cannot be described by a matrix.
        """
        if not self.is_affine:
            return None
        return np.linalg.inv(self._matrix).astype(np.float64, copy=False)

    def set_size(self, present: Present, size: Floats) -> None:
        """Set [height, width] of the images, (B, 2)."""
        self.size = np.where(present[:, None], size, self.size)

    def move(
        self, present: Present, function: Callable[[Floats, NDArray[np.int64]], Floats]
    ) -> None:
        """Replace coordinates by those that a function returns.

        Args:
            present: The samples.
            function: Gets points [x, y], (n, K, 2), and the sample of each row, (n,).
        """
        self.num_moves += 1
        seen = self.annotations
        for name in self._names():
            values, samples = seen.values(name), seen.samples(name)
            is_moved = present[samples]
            if not is_moved.any():
                continue
            is_box = seen.specs[name].kind == "boxes"
            moved = function(values[:, _CORNERS] if is_box else values, samples)
            if is_box:
                moved = np.concatenate([moved.min(1), moved.max(1)], -1)
            shape = (-1, *[1] * (values.ndim - 1))
            seen.replace(name, np.where(is_moved.reshape(shape), moved, values))

    def transform(self, present: Present, matrix: Floats) -> None:
        """Map all coordinates by matrices (B, 3, 3)."""
        self._multiply(present, matrix)
        has_divisor = bool((matrix[:, 2, :2] != 0.0).any())

        def move(points: Floats, samples: NDArray[np.int64]) -> Floats:
            m = matrix[samples][:, None]
            moved = times(m[..., :2, :2], points) + m[..., :2, 2]
            if has_divisor:
                divisor = m[..., 2, 0] * points[..., 0] + m[..., 2, 1] * points[..., 1]
                moved = moved / (divisor + m[..., 2, 2])[..., None]
            return moved

        self.move(present, move)

    def scale_and_shift(
        self, present: Present, scale: Any, shift: Any, divisor: Any = None
    ) -> None:
        """Map [x, y] to [x, y] / divisor * scale + shift, each (B, 2) or one number.

        Without a scale and a divisor, they are only shifted.
        """
        is_moved, none = present[:, None], np.zeros((len(present), 2))
        shift = np.where(is_moved, shift, none)
        is_scaled = scale is not None
        if is_scaled:
            scale, divisor = (np.where(is_moved, n, none + 1.0) for n in (scale, divisor))
        matrix = self._matrix.copy()
        rows = matrix[:, :2]
        if is_scaled:
            rows *= (scale / divisor)[..., None]
        rows += shift[..., None] * matrix[:, 2:]
        self._matrix = matrix
        # As one operation a coordinate: it costs a third of moving four corners of each box.
        self.num_moves += 1
        seen = self.annotations
        for name in self._names():
            values, samples = seen.values(name), seen.samples(name)
            if not len(values):
                continue
            pairs = values.reshape(len(values), -1, 2)
            if is_scaled:
                pairs = pairs / divisor[samples, None] * scale[samples, None]
            seen.replace(name, (pairs + shift[samples, None]).reshape(values.shape))

    def mirror(self, present: Present, linear: Floats, size: Floats) -> None:
        """Swap and mirror axes, and with them the points that a mirror swaps.

        Args:
            present: The samples.
            linear: The linear map of each sample, (B, 2, 2), of -1, 0 and 1; the identity for the
                samples that are not in `present`.
            size: [height, width] of the images before.
        """
        lengths = np.abs(times(linear, size[:, ::-1]))
        is_turned = linear.sum(-1) < 0.0
        matrix = np.zeros((len(linear), 3, 3))
        matrix[:, :2, :2], matrix[:, 2, 2] = linear, 1.0
        matrix[:, :2, 2] = np.where(is_turned, lengths, 0.0)
        self._multiply(present, matrix)
        shifts = matrix[:, :2, 2], np.where(is_turned, lengths - 1.0, 0.0)
        seen = self.annotations
        self.num_moves += 1
        is_reflected = linear[:, 0, 0] * linear[:, 1, 1] < linear[:, 0, 1] * linear[:, 1, 0]
        for name in self._names():
            values, samples = seen.values(name), seen.samples(name)
            is_point = seen.specs[name].kind == "points"
            points = values if is_point else values[:, _CORNERS]
            moved = times(linear[samples][:, None], points) + shifts[is_point][samples][:, None]
            if is_point:
                self._swap_pairs(name, moved, is_reflected & present)
            else:
                moved = np.concatenate([moved.min(1), moved.max(1)], -1)
            seen.replace(name, moved)

    def end_at_borders(self, present: Present) -> None:
        """Clamp boxes to the canvas, and hide the points that are outside."""
        seen = self.annotations
        limits = self.size[:, ::-1]
        clamps = present & seen.clamps
        for name in seen.names("boxes"):
            boxes, samples = seen.values(name), seen.samples(name)
            limit = np.where(clamps[:, None], limits, np.inf)[samples, None]
            lowest = np.where(clamps, 0.0, -np.inf)[samples, None, None]
            clamped = np.minimum(np.maximum(boxes.reshape(-1, 2, 2), lowest), limit)
            seen.replace(name, clamped.reshape(boxes.shape))
        for name in seen.names("points"):
            if (visibility := seen.visibility(name)) is not None:
                points, samples = seen.values(name), seen.samples(name)
                is_inside = ((points >= 0.0) & (points < limits[samples, None])).all(-1)
                is_hidden = ~is_inside & present[samples, None]
                seen.replace(visibility, np.where(is_hidden, 0, seen.values(visibility)))

    def _names(self) -> list[str]:
        return [*self.annotations.names("boxes"), *self.annotations.names("points")]

    def _multiply(self, present: Present, matrix: Floats) -> None:
        """Append a map to the maps from the first image."""
        before = self._matrix
        after = sum(matrix[:, :, n, None] * before[:, None, n] for n in range(3))
        self._matrix = np.where(present[:, None, None], after, before)

    def _swap_pairs(self, name: str, points: Floats, is_reflected: NDArray[np.bool_]) -> None:
        """Swap left and right points, and their visibility, where the image was reflected.

        Args:
            name: The field of the points.
            points: Their coordinates, which are changed in place.
            is_reflected: Whether each sample is a mirror image of what it was, bool (B,).
        """
        seen = self.annotations
        annotation = seen.specs[name].annotation
        if annotation is None or not annotation.flip_pairs:
            return
        order = np.arange(points.shape[1])
        for one, other in annotation.flip_pairs:
            order[[one, other]] = other, one
        rows = is_reflected[seen.samples(name)]
        points[rows] = points[rows][:, order]
        if visibility := seen.visibility(name):
            visible = seen.values(visibility).copy()
            visible[rows] = visible[rows][:, order]
            seen.replace(visibility, visible)


def times(matrix: Floats, vectors: Floats) -> Floats:
    """Multiply matrices (..., 2, 2) with vectors (..., 2), element by element."""
    product: Floats = matrix[..., 0] * vectors[..., :1] + matrix[..., 1] * vectors[..., 1:]
    return product
