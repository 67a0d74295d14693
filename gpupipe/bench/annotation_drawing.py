"""Draws the boxes and points of a sample over its picture."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpupipe.dataset.labels import is_zero_free
from gpupipe.dataset.spec import Spec

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from torch import Tensor

LABELS = "labels"
"""The field of annotations that holds the class of each box."""
USUAL_SPECS = {
    "boxes": Spec.of_boxes(),
    LABELS: Spec.of_rows("int64", rows_with="boxes"),
    "keypoints": Spec.of_points(rows_with="boxes"),
    "visibility": Spec.of_rows(
        "int64", rows_with="boxes", shape=(None,), visibility_of="keypoints"
    ),
}
"""The fields that are drawn in a batch whose loader is not at hand."""
_GOLDEN_RATIO = 0.618034
"""The hue step from one class to the next, as a share of the colour wheel: neighbours differ."""
_FONT_SIZE = 11
_RADIUS = 2


def as_dict(batch: Any, main: str, classes: Sequence[str]) -> Any:
    """Return a batch of the formats torchvision and detr as a dict of lists; others unchanged.

    Args:
        batch: A batch as a loader delivers it.
        main: The name of the main field of images.
        classes: The names of the classes, by label.
    """
    if isinstance(batch, Mapping) and "targets" in batch:
        images, targets = batch[main], batch["targets"]
        boxes = [_from_shares(target["boxes"], target["size"]) for target in targets]
        return {**_join(targets), "boxes": boxes, main: images}
    if isinstance(batch, tuple) and isinstance(batch[1], list):
        images, targets = batch
        joined = _join(targets)
        if LABELS in joined and not is_zero_free(classes):
            joined[LABELS] = [labels - 1 for labels in joined[LABELS]]
        return {**joined, main: images}
    return batch


def _join(targets: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = targets[0] if targets else {}
    return {name: [target[name] for target in targets] for name in names}


def _from_shares(boxes: Tensor, size: Tensor) -> Tensor:
    """Convert [center x, center y, width, height], from 0 to 1, to corners in pixels."""
    import torch

    center, sides = boxes[:, :2], boxes[:, 2:]
    scale = size.flip(0).repeat(2).to(boxes.dtype)
    return torch.cat([center - sides / 2, center + sides / 2], -1) * scale


def draw_annotations(
    picture: Image,
    rows: Mapping[str, Tensor],
    specs: Mapping[str, Spec],
    classes: Sequence[str],
    skeleton: Sequence[Sequence[int]] = (),
) -> None:
    """Draw boxes with the names of their classes, and points, over a picture, in place.

    Args:
        picture: The picture of the sample.
        rows: The rows of the sample, by field of annotations.
        specs: The spec of each field.
        classes: The names of the classes, by label.
        skeleton: Pairs of points, counted from 0, that a line connects where both are visible.
    """
    from PIL import ImageFont
    from PIL.ImageDraw import Draw

    pen, font = Draw(picture), ImageFont.load_default(_FONT_SIZE)
    labels = rows[LABELS].tolist() if LABELS in rows else None
    visible = {
        spec.annotation.visibility_of: rows[name]
        for name, spec in specs.items()
        if spec.annotation is not None and spec.annotation.visibility_of and name in rows
    }
    for name, spec in specs.items():
        for number, row in enumerate(rows[name].tolist() if name in rows else ()):
            label = number if labels is None or number >= len(labels) else int(labels[number])
            color = _color_of(label)
            if spec.kind == "boxes" and row[2] > row[0] and row[3] > row[1]:
                pen.rectangle(row, outline=color)
                text = classes[label] if labels is not None and 0 <= label < len(classes) else ""
                pen.text((row[0] + 2, row[1] + 1), text, fill=color, font=font)
            elif spec.kind == "points":
                shown = visible[name][number].tolist() if name in visible else [1] * len(row)
                points = [
                    (x, y) if is_visible and (not more or more[0]) else None
                    for (x, y, *more), is_visible in zip(row, shown, strict=True)
                ]
                _draw_points(pen, points, skeleton, color)


def _draw_points(
    pen: ImageDraw,
    points: Sequence[tuple[float, float] | None],
    skeleton: Sequence[Sequence[int]],
    color: tuple[int, int, int],
) -> None:
    """Draw points [x, y] and the lines of a skeleton; None is a point that is not visible."""
    for pair in skeleton:
        ends = [points[number] for number in pair if 0 <= number < len(points)]
        if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
            pen.line([ends[0], ends[1]], fill=color)
    for x, y in filter(None, points):
        pen.ellipse((x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS), fill=color)


def _color_of(label: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(label * _GOLDEN_RATIO % 1, 1, 1)
    return int(255 * red), int(255 * green), int(255 * blue)
