"""Moves boxes and points with torchvision's functionals, for the parameters that a step drew.

This is the reference of the back end that moves coordinates. Everything is float64.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxes, KeyPoints

from gpupipe.pipeline.container import NestedStep, select_params

_ROUNDING = 1e-3
"""Pixels."""


@dataclass(frozen=True)
class Annotated:
    """The boxes and points of one image, which share rows.

    Attributes:
        boxes: (N, 4) float64, XYXY.
        points: (N, K, 2) float64; K is 0 if there are no points.
        rows: The positions of these rows among the rows before the first step, (N,).
        flip_pairs: Pairs of positions 0 to K - 1 of points that a horizontal flip swaps.
    """

    boxes: BoundingBoxes
    points: KeyPoints
    rows: torch.Tensor
    flip_pairs: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """[height, width] of the canvas."""
        height, width = self.points.canvas_size
        return height, width

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "Annotated":
        """Return the same rows after a functional of torchvision."""
        boxes = function(self.boxes, *args, **kwargs)
        points = function(self.points, *args, **kwargs)
        # A functional that gets no row returns the canvas as it was.
        boxes.canvas_size = points.canvas_size = self._canvas_after(function, args, kwargs)
        return replace(self, boxes=boxes, points=points)

    def keep(self, is_kept: torch.Tensor) -> "Annotated":
        """Return some of the rows."""
        boxes = wrap_boxes(self.boxes[is_kept], self.size, self.boxes.clamping_mode)
        points = KeyPoints(torch.Tensor(self.points)[is_kept], canvas_size=self.size)
        return replace(self, boxes=boxes, points=points, rows=self.rows[is_kept])

    def with_boxes(self, boxes: torch.Tensor) -> "Annotated":
        """Return the rows with other coordinates of the boxes."""
        return replace(self, boxes=wrap_boxes(boxes, self.size, self.boxes.clamping_mode))

    def flip(self, function: Callable[..., Any]) -> "Annotated":
        """Return the same rows after a flip, with left and right points swapped."""
        flipped = self.apply(function)
        order = list(range(self.points.shape[1]))
        for one, other in self.flip_pairs:
            order[one], order[other] = other, one
        points = torch.Tensor(flipped.points)[:, order]
        return replace(flipped, points=KeyPoints(points, canvas_size=self.size))

    def _canvas_after(self, function: Any, args: Any, kwargs: Any) -> tuple[int, int]:
        """The canvas that torchvision's functional makes of the canvas itself."""
        canvas = torch.zeros(1, *self.size, dtype=torch.uint8, device="meta")
        made = function(canvas, *args, **kwargs)
        return int(made.shape[-2]), int(made.shape[-1])


def wrap_boxes(boxes: torch.Tensor, size: tuple[int, int], mode: str | None) -> BoundingBoxes:
    """Return boxes XYXY on a canvas [height, width], with torchvision's clamping mode."""
    return BoundingBoxes(
        boxes.as_subclass(torch.Tensor), format="XYXY", canvas_size=size, clamping_mode=mode
    )


def _size_of(sample: Annotated) -> Any:
    return np.array(sample.size, np.float64)


def _integers(*numbers: Any) -> list[int]:
    return [int(n) for part in numbers for n in np.asarray(part).reshape(-1)]


def _resize(step: Any, p: Any, sample: Annotated) -> Annotated:
    size = [step.size] if isinstance(step.size, int) else list(step.size)
    return sample.apply(F.resize, size, max_size=step.max_size)


def _resize_to_shape(step: Any, p: Any, sample: Annotated) -> Annotated:
    return sample.apply(F.resize, _integers(step.shape(p, _size_of(sample))))


def _random_crop(step: Any, p: Any, sample: Annotated) -> Annotated:
    before, after = step.margins(_size_of(sample))
    if step.can_pad:
        sample = sample.apply(F.pad, _integers(before[::-1], after[::-1]))
    anchor = step.anchor(p, _size_of(sample))
    return sample.apply(F.crop, *_integers(anchor, step.size))


def _resized_crop(step: Any, p: Any, sample: Annotated) -> Annotated:
    anchor, shape = step.window(p, _size_of(sample))
    return sample.apply(F.resized_crop, *_integers(anchor, shape), size=list(step.size))


def _zoom_out(step: Any, p: Any, sample: Annotated) -> Annotated:
    if not p["runs"]:
        return sample
    anchor, shape = step.canvas(p, _size_of(sample))
    after = shape + anchor - _size_of(sample)
    return sample.apply(F.pad, _integers(-anchor[::-1], after[::-1]))


def _affine(step: Any, p: Any, sample: Annotated) -> Annotated:
    shift = _integers(step.shift(p, _size_of(sample)[::-1]))
    return sample.apply(
        F.affine,
        angle=float(p["angle"]),
        translate=shift,
        scale=float(p["scale"]),
        shear=p["shear"].tolist(),
        center=list(step.center) if step.center else None,
    )


def _rotation(step: Any, p: Any, sample: Annotated) -> Annotated:
    center = list(step.center) if step.center else None
    return sample.apply(F.rotate, float(p["angle"]), expand=step.expand, center=center)


def _perspective(step: Any, p: Any, sample: Annotated) -> Annotated:
    if not p["runs"]:
        return sample
    start, end = (part.astype(int).tolist() for part in step.corners(p, _size_of(sample)[::-1]))
    return sample.apply(F.perspective, start, end)


def _iou_crop(step: Any, p: Any, sample: Annotated) -> Annotated:
    """RandomIoUCrop.transform, for the window that the step decided."""
    if not p["crops"]:
        return sample
    top, left, height, width = _integers(p["anchor"], p["shape"])
    boxes = torch.Tensor(sample.boxes)
    cx, cy = 0.5 * (boxes[:, 0] + boxes[:, 2]), 0.5 * (boxes[:, 1] + boxes[:, 3])
    is_within = (left < cx) & (cx < left + width) & (top < cy) & (cy < top + height)
    cropped = sample.apply(F.crop, top, left, height, width)
    boxes = torch.Tensor(cropped.boxes).clone()
    boxes[~is_within] = 0
    return cropped.with_boxes(boxes)


def _fixed_size_crop(step: Any, p: Any, sample: Annotated) -> Annotated:
    """FixedSizeCrop.forward of torchvision's references/detection/transforms.py."""
    height, width = sample.size
    new_height, new_width = min(height, step.size[0]), min(width, step.size[1])
    if new_height != height or new_width != width:
        top, left = _integers(step.anchor(p, _size_of(sample)))
        sample = _drop_empty(sample.apply(F.crop, top, left, new_height, new_width))
    pad_bottom, pad_right = step.size[0] - new_height, step.size[1] - new_width
    return sample.apply(F.pad, [0, 0, pad_right, pad_bottom])


def _drop_empty(sample: Annotated) -> Annotated:
    boxes = torch.Tensor(sample.boxes)
    return sample.keep((boxes[:, 2:] > boxes[:, :2]).all(-1))


def _letterbox(step: Any, p: Any, sample: Annotated) -> Annotated:
    shape = step.shape(_size_of(sample))
    before = step.border(shape)
    after = np.array(step.size) - shape - before
    resized = sample.apply(F.resize, _integers(shape))
    return resized.apply(F.pad, _integers(before[::-1], after[::-1]))


def _nested(number: int, step: Any, p: Any, sample: Annotated) -> Annotated:
    nested: NestedStep = step.transforms[number]
    return move(nested.name, nested.step, select_params(number, p), sample)


def _apply(step: Any, p: Any, sample: Annotated) -> Annotated:
    for number in range(len(step.transforms) if p["runs"] else 0):
        sample = _nested(number, step, p, sample)
    return sample


def _order(step: Any, p: Any, sample: Annotated) -> Annotated:
    for number in p["order"]:
        sample = _nested(int(number), step, p, sample)
    return sample


def _sanitize_boxes(step: Any, p: Any, sample: Annotated) -> Annotated:
    # torchvision's resize rounds its factor to float32, which may move a box beyond the border.
    height, width = sample.size
    limits = torch.tensor([width, height, width, height])
    boxes = torch.Tensor(sample.boxes)
    is_rounded = (boxes > limits) & (boxes < limits + _ROUNDING)
    rounded = sample.with_boxes(torch.where(is_rounded, limits, boxes))
    _, is_valid = F.sanitize_bounding_boxes(
        rounded.boxes, min_size=step.min_size, min_area=step.min_area
    )
    return rounded.keep(is_valid)


def _sanitize_points(step: Any, p: Any, sample: Annotated) -> Annotated:
    return sample.keep(F.sanitize_keypoints(sample.points)[1])


def _clamp_boxes(step: Any, p: Any, sample: Annotated) -> Annotated:
    clamped = F.clamp_bounding_boxes(sample.boxes, clamping_mode=step.clamping_mode)
    return sample.with_boxes(clamped)


def _clamp_points(step: Any, p: Any, sample: Annotated) -> Annotated:
    return replace(sample, points=F.clamp_keypoints(sample.points))


def _set_clamping_mode(step: Any, p: Any, sample: Annotated) -> Annotated:
    return replace(sample, boxes=wrap_boxes(sample.boxes, sample.size, step.clamping_mode))


_MOVES: dict[str, Callable[[Any, Any, Annotated], Annotated]] = {
    "resize": _resize,
    "random_resize": _resize_to_shape,
    "random_shortest_size": _resize_to_shape,
    "scale_jitter": _resize_to_shape,
    "letterbox": _letterbox,
    "center_crop": lambda step, p, sample: sample.apply(F.center_crop, list(step.size)),
    "random_crop": _random_crop,
    "random_resized_crop": _resized_crop,
    "fixed_size_crop": _fixed_size_crop,
    "random_size_crop": lambda step, p, sample: _drop_empty(
        sample.apply(F.crop, *_integers(*step.window(p, _size_of(sample))))
    ),
    "random_iou_crop": _iou_crop,
    "pad": lambda step, p, sample: sample.apply(F.pad, list(step.padding)),
    "random_zoom_out": _zoom_out,
    "random_horizontal_flip": lambda step, p, sample: (
        sample.flip(F.horizontal_flip) if p["flip"] else sample
    ),
    "random_vertical_flip": lambda step, p, sample: (
        sample.flip(F.vertical_flip) if p["flip"] else sample
    ),
    "random_affine": _affine,
    "random_rotation": _rotation,
    "random_perspective": _perspective,
    "identity": lambda step, p, sample: sample,
    "random_apply": _apply,
    "random_choice": lambda step, p, sample: _nested(int(p["choice"]), step, p, sample),
    "random_order": _order,
    "sanitize_bounding_boxes": _sanitize_boxes,
    "sanitize_keypoints": _sanitize_points,
    "clamp_bounding_boxes": _clamp_boxes,
    "clamp_keypoints": _clamp_points,
    "set_clamping_mode": _set_clamping_mode,
}


def has_functionals(name: str) -> bool:
    """Return whether `move` knows the step of this name."""
    return name in _MOVES


def move(name: str, step: Any, p: Any, sample: Annotated) -> Annotated:
    """Return the annotations of one sample after a step that torchvision has functionals for.

    Args:
        name: The step's name.
        step: The step, resolved.
        p: The parameters of this sample, also those that the step decided.
        sample: The boxes and points before the step. They are returned if `move` does not know the
            step, as it should be for steps that change colours alone.
    """
    return _MOVES[name](step, p, sample) if name in _MOVES else sample
