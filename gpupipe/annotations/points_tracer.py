"""Moves boxes and points as the primitives move the pixels of their image, for a whole batch.

The conventions are those of torchvision.transforms.v2.functional:

- A box is the hull of its four corners after the move. It is clamped to the canvas after each
  primitive that may move it across the border, unless its clamping mode is None.
- A flip maps x of a box to W - x, and x of a point to W - 1 - x: points count from the centres of
  pixels.
- A point outside the canvas keeps its coordinates, and its visibility becomes 0.

All arithmetic is element by element in float64. So the numbers of a sample do not depend on the
samples beside it: a matrix product may round differently in a larger batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations, Floats
from gpupipe.pipeline.step import NoLoweringError

_CORNERS = np.array([[0, 1], [2, 1], [2, 3], [0, 3]])
"""Positions of [x, y] of the four corners in a box [left, top, right, bottom]."""
_INVERSIONS = 4
"""Iterations that invert a field of displacements. Each makes the error smaller by the factor by
which the displacements of neighbours differ: 0.2 for elastic_transform with its defaults.
"""
_TRANSPOSED = 5
"""From this EXIF orientation on, the sides of the image are swapped."""
_ORIENTATIONS = np.array(
    [
        [[1, 0], [0, 1]],
        [[-1, 0], [0, 1]],
        [[-1, 0], [0, -1]],
        [[1, 0], [0, -1]],
        [[0, 1], [1, 0]],
        [[0, -1], [1, 0]],
        [[0, -1], [-1, 0]],
        [[0, 1], [-1, 0]],
    ],
    np.float64,
)
"""For the EXIF orientations 1 to 8: the linear map from stored to upright [x, y]."""


@dataclass
class _State:
    """What all branches of a switch share.

    Attributes:
        size: [height, width] of each image at this point, float64 (B, 2).
        matrix: The map from the first image to this one in homogeneous [x, y, 1], (B, 3, 3).
        is_affine: Whether all moves so far are affine, whatever was drawn.
        num_moves: How many primitives so far may move pixels.
    """

    size: Floats
    matrix: Floats
    is_affine: bool = True
    num_moves: int = 0


class PointsTracer:
    """The back end of primitives that moves annotations, and leaves pixels alone.

    See Primitives for what each method does.

    Args:
        annotations: The annotations on one field of images. The tracer changes them.
        size: [height, width] of each image after `decode`, float64 (B, 2).
        orientations: The EXIF orientation of each image, 1 to 8, int64 (B,). Needed only if
            `decode` applies it.
    """

    def __init__(
        self,
        annotations: Annotations,
        size: Floats,
        orientations: NDArray[np.int64] | None = None,
    ) -> None:
        count = len(size)
        self.annotations: Annotations | None = annotations
        self._annotations = annotations
        self.spec, self.present = Spec(), np.ones(count, bool)
        self._orientations = orientations
        matrix = np.zeros((count, 3, 3))
        matrix[:, range(3), range(3)] = 1.0
        self._state = _State(np.array(size, np.float64), matrix)

    def fork(self) -> PointsTracer:
        """Return a tracer that continues with a copy, for the steps of a view."""
        state = self._state
        fork = self._part(self.present)
        fork.annotations = fork._annotations = self._annotations.fork()
        fork._state = _State(
            state.size.copy(), state.matrix.copy(), state.is_affine, state.num_moves
        )
        return fork

    def to_original(self) -> Floats | None:
        """Return the maps from the current image to the stored one, float64 (B, 3, 3).

        None if a step may move pixels in a way that no matrix describes.
        """
        if not self._state.is_affine:
            return None
        return np.linalg.inv(self._state.matrix).astype(np.float64, copy=False)

    @property
    def size(self) -> Floats:
        return self._state.size

    @property
    def width_height(self) -> Floats:
        return self._state.size[:, ::-1]

    # --- primitives that move pixels

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        if not apply_exif_orientation:
            return
        assert self._orientations is not None
        orientations = np.where(self.present, self._orientations, 1)
        swaps = (orientations >= _TRANSPOSED)[:, None]
        stored = np.where(swaps, self.size[:, ::-1], self.size)
        linear = _ORIENTATIONS[orientations - 1]
        self._mirror(linear, stored)

    def crop(self, anchor: Any, shape: Any, fill: tuple[float, ...] | None = None) -> None:
        self._scale_and_shift(None, -self._pairs(anchor)[:, ::-1])
        self._set_size(self._pairs(shape))
        self._end_at_borders()

    def pad(self, before: Any, after: Any, mode: str) -> None:
        before = self._pairs(before)
        self._scale_and_shift(None, before[:, ::-1])
        self._set_size(self.size + before + self._pairs(after))
        self._end_at_borders()

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        shape = self._pairs(shape)
        # The division comes first: x / W is at most 1, so that a box at the border stays there.
        self._scale_and_shift(shape[:, ::-1], 0.0, np.maximum(self.width_height, 1.0))
        self._set_size(shape)

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        none = np.zeros(len(self.present), bool)
        flags = [none if f is None else np.asarray(f) > 0 for f in (horizontal, vertical)]
        linear = np.zeros((len(none), 2, 2))
        for axis, flag in enumerate(flags):
            linear[:, axis, axis] = np.where(flag & self.present, -1.0, 1.0)
        self._mirror(linear, self.size)

    def transpose(self) -> None:
        linear = np.where(self.present[:, None, None], [[0.0, 1.0], [1.0, 0.0]], np.eye(2))
        self._mirror(linear, self.size)
        self._set_size(self.size[:, ::-1])

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: tuple[float, ...] | None,
        shape: Any = None,
    ) -> None:
        a, b, c, d = (np.asarray(linear)[..., i, j] for i in range(2) for j in range(2))
        scale = 1.0 / (a * d - b * c)
        forward = np.broadcast_to(
            np.stack([np.stack([d, -b], -1), np.stack([-c, a], -1)], -2) * scale[..., None, None],
            (len(self.present), 2, 2),
        )
        shift = self._pairs(output) - _times(forward, self._pairs(source))
        if shape is not None:
            # torchvision moves the hull of the rotated canvas to 0, and not by whole pixels.
            canvas = self.width_height[:, None] * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
            shift = -_times(forward[:, None], canvas).min(1)
        matrix = np.zeros((len(self.present), 3, 3))
        matrix[:, :2, :2], matrix[:, :2, 2], matrix[:, 2, 2] = forward, shift, 1.0
        self._transform(matrix)
        if shape is not None:
            self._set_size(self._pairs(shape))
        self._end_at_borders()

    def perspective(self, matrix: Any, interpolation: str, fill: tuple[float, ...]) -> None:
        shape = (len(self.present), 3, 3)
        # torchvision's coefficients are float32. Near the horizon that is a thousandth of a pixel.
        m = np.broadcast_to(np.asarray(matrix).astype(np.float32).astype(np.float64), shape)
        inverse = np.stack(
            [np.cross(m[:, 1], m[:, 2]), np.cross(m[:, 2], m[:, 0]), np.cross(m[:, 0], m[:, 1])], -1
        )
        self._state.is_affine = False
        self._transform(inverse / inverse[:, 2:, 2:])
        self._end_at_borders()

    def remap(
        self,
        displacement: NDArray[np.float32],
        reach: tuple[int, int],
        interpolation: str,
        fill: tuple[float, ...],
    ) -> None:
        self._displace(lambda n: displacement[n])

    def elastic(
        self,
        seeds: NDArray[np.int64],
        alpha: tuple[float, float],
        sigma: tuple[float, float],
        interpolation: str,
        fill: tuple[float, ...],
    ) -> None:
        elastic, sizes = Elastic(alpha, sigma), self.size.astype(np.int64)

        @cache
        def find(n: int) -> NDArray[np.float32]:
            height, width = sizes[n].tolist()
            return make_displacement(seeds[n], (height, width), elastic)

        self._displace(find)

    def _displace(self, find: Callable[[int], NDArray[np.float32]]) -> None:
        """Move points by displacements; `find` returns those of one image, (H, W, 2)."""
        self._state.is_affine = False
        half = self.width_height / 2.0

        def move(points: Floats, samples: NDArray[np.int64]) -> Floats:
            moved = points.copy()
            for n in np.unique(samples[self.present[samples]]).tolist():
                own = samples == n
                moved[own] = _invert(points[own], find(n) * half[n])
            return moved

        self._move(move)
        self._end_at_borders()

    # --- primitives that choose between others

    def switch(self, index: Any, branches: Sequence[Callable[[Any], None]]) -> None:
        for number, branch in enumerate(branches):
            branch(self._part(self.present & (np.asarray(index) == number)))

    def blend(self, branches: Sequence[Callable[[Any], None]], weights: Any) -> None:
        for branch in branches:
            part = self.fork()
            before = part._state.num_moves
            branch(part)
            if part._state.num_moves > before:
                raise NoLoweringError(
                    "it mixes an image with a moved copy of itself, in which boxes and points "
                    "have no single place: leave the operations out that move pixels"
                )

    # --- primitives that move no pixel

    def erase(
        self,
        anchor: Any,
        shape: Any,
        value: tuple[float, ...],
        seeds: NDArray[np.int64] | None = None,
    ) -> None:
        """Do nothing: boxes below an erased window stay, as in torchvision."""

    def add(self, values: NDArray[Any], clip: bool) -> None:
        """Do nothing: colours do not move annotations."""

    def add_noise(self, seeds: NDArray[np.int64], mean: float, sigma: float, clip: bool) -> None:
        """Do nothing: colours do not move annotations."""

    def color_matrix(self, matrix: Any) -> None:
        """Do nothing: colours do not move annotations."""

    def to_dtype(self, dtype: str, scale: bool) -> None:
        """Do nothing: annotations have dtypes of their own."""

    def normalize(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Do nothing: colours do not move annotations."""

    def color(self, op: str, *values: Any) -> None:
        """Do nothing: colours do not move annotations."""

    def call_torch(
        self, function: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        """Do nothing: the steps that call it change values alone."""

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        raise NoLoweringError(
            f"the operator {op} may move pixels in a way that boxes and points cannot follow"
        )

    # --- moving coordinates

    def _part(self, present: NDArray[np.bool_]) -> PointsTracer:
        """Return a tracer of the same samples, whose calls apply to those in `present` alone."""
        part: PointsTracer = object.__new__(PointsTracer)
        vars(part).update(vars(self))
        part.present = present
        return part

    def _pairs(self, numbers: Any) -> Floats:
        """Return one pair of numbers for each sample, float64 (B, 2)."""
        return np.broadcast_to(np.asarray(numbers, np.float64), (len(self.present), 2))

    def _set_size(self, size: Floats) -> None:
        self._state.size = np.where(self.present[:, None], size, self._state.size)

    def _move(self, function: Callable[[Floats, NDArray[np.int64]], Floats]) -> None:
        """Replace the coordinates of present samples by those that a function returns.

        Args:
            function: Gets points [x, y], (n, K, 2), and the sample of each row, (n,).
        """
        self._state.num_moves += 1
        seen = self._annotations
        for name in (*seen.names("boxes"), *seen.names("points")):
            values, samples = seen.values(name), seen.samples(name)
            is_moved = self.present[samples]
            if not is_moved.any():
                continue
            is_box = seen.specs[name].kind == "boxes"
            moved = function(values[:, _CORNERS] if is_box else values, samples)
            if is_box:
                moved = np.concatenate([moved.min(1), moved.max(1)], -1)
            shape = (-1, *[1] * (values.ndim - 1))
            seen.replace(name, np.where(is_moved.reshape(shape), moved, values))

    def _transform(self, matrix: Floats) -> None:
        """Map all coordinates of present samples by matrices (B, 3, 3)."""
        self._multiply(matrix)
        has_divisor = bool((matrix[:, 2, :2] != 0.0).any())

        def move(points: Floats, samples: NDArray[np.int64]) -> Floats:
            m = matrix[samples][:, None]
            moved = _times(m[..., :2, :2], points) + m[..., :2, 2]
            if has_divisor:
                divisor = m[..., 2, 0] * points[..., 0] + m[..., 2, 1] * points[..., 1]
                moved = moved / (divisor + m[..., 2, 2])[..., None]
            return moved

        self._move(move)

    def _multiply(self, matrix: Floats) -> None:
        """Append a map to the maps from the first image."""
        before = self._state.matrix
        after = sum(matrix[:, :, n, None] * before[:, None, n] for n in range(3))
        self._state.matrix = np.where(self.present[:, None, None], after, before)

    def _scale_and_shift(self, scale: Any, shift: Any, divisor: Any = None) -> None:
        """Map [x, y] to [x, y] / divisor * scale + shift, each (B, 2) or one number.

        Without a scale and a divisor, they are only shifted.
        """
        is_moved, none = self.present[:, None], np.zeros((len(self.present), 2))
        shift = np.where(is_moved, shift, none)
        is_scaled = scale is not None
        if is_scaled:
            scale, divisor = (np.where(is_moved, n, none + 1.0) for n in (scale, divisor))
        matrix = self._state.matrix.copy()
        rows = matrix[:, :2]
        if is_scaled:
            rows *= (scale / divisor)[..., None]
        rows += shift[..., None] * matrix[:, 2:]
        self._state.matrix = matrix
        # As one operation a coordinate: it costs a third of moving four corners of each box.
        self._state.num_moves += 1
        seen = self._annotations
        for name in (*seen.names("boxes"), *seen.names("points")):
            values, samples = seen.values(name), seen.samples(name)
            if not len(values):
                continue
            pairs = values.reshape(len(values), -1, 2)
            if is_scaled:
                pairs = pairs / divisor[samples, None] * scale[samples, None]
            seen.replace(name, (pairs + shift[samples, None]).reshape(values.shape))

    def _mirror(self, linear: Floats, size: Floats) -> None:
        """Swap and mirror axes, and with them the points that a mirror swaps.

        Args:
            linear: The linear map of each sample, (B, 2, 2), of -1, 0 and 1.
            size: [height, width] of the images before.
        """
        lengths = np.abs(_times(linear, size[:, ::-1]))
        is_turned = linear.sum(-1) < 0.0
        matrix = np.zeros((len(linear), 3, 3))
        matrix[:, :2, :2], matrix[:, 2, 2] = linear, 1.0
        matrix[:, :2, 2] = np.where(is_turned, lengths, 0.0)
        self._multiply(matrix)
        shifts = matrix[:, :2, 2], np.where(is_turned, lengths - 1.0, 0.0)
        seen = self._annotations
        self._state.num_moves += 1
        is_reflected = linear[:, 0, 0] * linear[:, 1, 1] < linear[:, 0, 1] * linear[:, 1, 0]
        for name in (*seen.names("boxes"), *seen.names("points")):
            values, samples = seen.values(name), seen.samples(name)
            is_point = seen.specs[name].kind == "points"
            points = values if is_point else values[:, _CORNERS]
            moved = _times(linear[samples][:, None], points) + shifts[is_point][samples][:, None]
            if is_point:
                self._swap_pairs(name, moved, is_reflected)
            else:
                moved = np.concatenate([moved.min(1), moved.max(1)], -1)
            seen.replace(name, moved)

    def _swap_pairs(self, name: str, points: Floats, is_reflected: NDArray[np.bool_]) -> None:
        """Swap left and right points, and their visibility, where the image was reflected.

        Args:
            name: The field of the points.
            points: Their coordinates, which are changed in place.
            is_reflected: Whether each sample is a mirror image of what it was, bool (B,).
        """
        seen = self._annotations
        annotation = seen.specs[name].annotation
        if annotation is None or not annotation.flip_pairs:
            return
        order = np.arange(points.shape[1])
        for one, other in annotation.flip_pairs:
            order[[one, other]] = other, one
        rows = (is_reflected & self.present)[seen.samples(name)]
        points[rows] = points[rows][:, order]
        if visibility := seen.visibility(name):
            visible = seen.values(visibility).copy()
            visible[rows] = visible[rows][:, order]
            seen.replace(visibility, visible)

    def _end_at_borders(self) -> None:
        """Clamp boxes to the canvas, and hide the points that are outside."""
        seen = self._annotations
        limits = self.width_height
        clamps = self.present & seen.clamps
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
                is_hidden = ~is_inside & self.present[samples, None]
                seen.replace(visibility, np.where(is_hidden, 0, seen.values(visibility)))


def _invert(points: Floats, displacement: Floats) -> Floats:
    """Return the points p from which the displacement at p, (H, W, 2), leads to `points`.

    torchvision takes the displacement at `points`, the first of these iterations.
    """
    largest = np.array(displacement.shape[1::-1]) - 1
    moved = points
    for _ in range(_INVERSIONS):
        x, y = np.moveaxis(np.clip(np.floor(moved), 0, largest).astype(np.int64), -1, 0)
        moved = points - displacement[y, x]
    return moved


def _times(matrix: Floats, vectors: Floats) -> Floats:
    """Multiply matrices (..., 2, 2) with vectors (..., 2), element by element."""
    product: Floats = matrix[..., 0] * vectors[..., :1] + matrix[..., 1] * vectors[..., 1:]
    return product
