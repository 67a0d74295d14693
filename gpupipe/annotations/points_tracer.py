"""PointsTracer: the back end of primitives that moves boxes and points, and leaves pixels alone."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.annotations.canvas import Canvas, times
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations, Floats
from gpupipe.pipeline.primitives import Fill, Pair, Seeds
from gpupipe.pipeline.step import NoLoweringError

_INVERSIONS = 4
"""Iterations that invert a field of displacements. Each makes the error smaller by the factor by
which the displacements of neighbours differ: 0.2 for elastic_transform with its defaults.
"""
TRANSPOSED = 5
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
        self.annotations: Annotations | None = annotations
        self.spec, self.present = Spec(), np.ones(len(size), bool)
        self._canvas, self._orientations = Canvas(annotations, size), orientations

    def fork(self) -> "PointsTracer":
        """Return a tracer that continues with a copy, for the steps of a view."""
        fork = self._part(self.present)
        fork._canvas = self._canvas.fork()
        fork.annotations = fork._canvas.annotations
        return fork

    def to_original(self) -> Floats | None:
        """Return the maps from the current image to the stored one, float64 (B, 3, 3).

        None if a step may move pixels in a way that no matrix describes.
        """
        return self._canvas.to_original()

    @property
    def size(self) -> Floats:
        return self._canvas.size

    @property
    def width_height(self) -> Floats:
        return self._canvas.size[:, ::-1]

    @property
    def num_moves(self) -> int:
        """How often primitives so far may have moved pixels."""
        return self._canvas.num_moves

    # --- primitives that move pixels

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        if not apply_exif_orientation:
            return
        assert self._orientations is not None
        orientations = np.where(self.present, self._orientations, 1)
        swaps = (orientations >= TRANSPOSED)[:, None]
        stored = np.where(swaps, self.size[:, ::-1], self.size)
        linear = _ORIENTATIONS[orientations - 1]
        self._canvas.mirror(self.present, linear, stored)

    def crop(self, anchor: Any, shape: Any, fill: Fill | None = None) -> None:
        self._canvas.scale_and_shift(self.present, None, -self._pairs(anchor)[:, ::-1])
        self._canvas.set_size(self.present, self._pairs(shape))
        self._canvas.end_at_borders(self.present)

    def pad(self, before: Any, after: Any, mode: str) -> None:
        before = self._pairs(before)
        self._canvas.scale_and_shift(self.present, None, before[:, ::-1])
        self._canvas.set_size(self.present, self.size + before + self._pairs(after))
        self._canvas.end_at_borders(self.present)

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        shape = self._pairs(shape)
        # The division comes first: x / W is at most 1, so that a box at the border stays there.
        self._canvas.scale_and_shift(
            self.present, shape[:, ::-1], 0.0, np.maximum(self.width_height, 1.0)
        )
        self._canvas.set_size(self.present, shape)

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        none = np.zeros(len(self.present), bool)
        flags = [none if f is None else np.asarray(f) > 0 for f in (horizontal, vertical)]
        linear = np.zeros((len(none), 2, 2))
        for axis, flag in enumerate(flags):
            linear[:, axis, axis] = np.where(flag & self.present, -1.0, 1.0)
        self._canvas.mirror(self.present, linear, self.size)

    def transpose(self) -> None:
        linear = np.where(self.present[:, None, None], [[0.0, 1.0], [1.0, 0.0]], np.eye(2))
        self._canvas.mirror(self.present, linear, self.size)
        self._canvas.set_size(self.present, self.size[:, ::-1])

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: Fill | None,
        shape: Any = None,
    ) -> None:
        a, b, c, d = (np.asarray(linear)[..., i, j] for i in range(2) for j in range(2))
        scale = 1.0 / (a * d - b * c)
        forward = np.broadcast_to(
            np.stack([np.stack([d, -b], -1), np.stack([-c, a], -1)], -2) * scale[..., None, None],
            (len(self.present), 2, 2),
        )
        shift = self._pairs(output) - times(forward, self._pairs(source))
        if shape is not None:
            # torchvision moves the hull of the rotated canvas to 0, and not by whole pixels.
            canvas = self.width_height[:, None] * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
            shift = -times(forward[:, None], canvas).min(1)
        matrix = np.zeros((len(self.present), 3, 3))
        matrix[:, :2, :2], matrix[:, :2, 2], matrix[:, 2, 2] = forward, shift, 1.0
        self._canvas.transform(self.present, matrix)
        if shape is not None:
            self._canvas.set_size(self.present, self._pairs(shape))
        self._canvas.end_at_borders(self.present)

    def perspective(self, matrix: Any, interpolation: str, fill: Fill) -> None:
        shape = (len(self.present), 3, 3)
        # torchvision's coefficients are float32. Near the horizon that is a thousandth of a pixel.
        m = np.broadcast_to(np.asarray(matrix).astype(np.float32).astype(np.float64), shape)
        inverse = np.stack(
            [np.cross(m[:, 1], m[:, 2]), np.cross(m[:, 2], m[:, 0]), np.cross(m[:, 0], m[:, 1])], -1
        )
        self._canvas.is_affine = False
        self._canvas.transform(self.present, inverse / inverse[:, 2:, 2:])
        self._canvas.end_at_borders(self.present)

    def elastic(
        self, seeds: Seeds, alpha: Pair, sigma: Pair, interpolation: str, fill: Fill
    ) -> None:
        elastic, sizes = Elastic(alpha, sigma), self.size.astype(np.int64)

        @cache
        def find(n: int) -> NDArray[np.float32]:
            height, width = sizes[n].tolist()
            return make_displacement(seeds[n], (height, width), elastic)

        self._displace(find)

    def _displace(self, find: Callable[[int], NDArray[np.float32]]) -> None:
        """Move points by displacements; `find` returns those of one image, (H, W, 2)."""
        self._canvas.is_affine = False
        half = self.width_height / 2.0

        def move(points: Floats, samples: NDArray[np.int64]) -> Floats:
            moved = points.copy()
            for n in np.unique(samples[self.present[samples]]).tolist():
                own = samples == n
                moved[own] = _invert(points[own], find(n) * half[n])
            return moved

        self._canvas.move(self.present, move)
        self._canvas.end_at_borders(self.present)

    # --- primitives that choose between others

    def switch(self, index: Any, branches: Sequence[Callable[[Any], None]]) -> None:
        for number, branch in enumerate(branches):
            branch(self._part(self.present & (np.asarray(index) == number)))

    def blend(self, branches: Sequence[Callable[[Any], None]], weights: Any) -> None:
        for branch in branches:
            part = self.fork()
            before = part.num_moves
            branch(part)
            if part.num_moves > before:
                raise NoLoweringError(
                    "it mixes an image with a moved copy of itself, in which boxes and points "
                    "have no single place: leave the operations out that move pixels"
                )

    # --- primitives that move no pixel

    def _leave(self, *arguments: Any, **options: Any) -> None:
        """Do nothing: colours and dtypes do not move annotations.

        Boxes below an erased window stay, as in torchvision.
        """

    erase = add_noise = color_matrix = to_dtype = normalize = color = call_torch = _leave

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        raise NoLoweringError(
            f"the operator {op} may move pixels in a way that boxes and points cannot follow"
        )

    def _part(self, present: NDArray[np.bool_]) -> "PointsTracer":
        """Return a tracer of the same samples, whose calls apply to those in `present` alone."""
        part: PointsTracer = object.__new__(PointsTracer)
        vars(part).update(vars(self))
        part.present = present
        return part

    def _pairs(self, numbers: Any) -> Floats:
        """Return one pair of numbers for each sample, float64 (B, 2)."""
        return np.broadcast_to(np.asarray(numbers, np.float64), (len(self.present), 2))


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
