"""Boxes and points of images whose rows and columns are swapped, compared with the pixels."""

from typing import Any

import numpy as np
import torch

from gpupipe.annotations.points_tracer import PointsTracer
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations
from gpupipe.pipeline.step import Step

SPECS = {"boxes": Spec.of_boxes(), "points": Spec.of_points(rows_with="boxes", count=3)}
_COUNT = 24


def check_turned(step: Step) -> set[tuple[int, int]]:
    """Assert that boxes and points stay on the pixels on which they were, in 24 images.

    Returns:
        The sizes of the images after the step.
    """
    rng = np.random.default_rng(5)
    sizes = np.tile([7.0, 11.0], (_COUNT, 1))
    corners = rng.integers(0, [11, 7], (_COUNT, 2))
    boxes = np.concatenate([corners, corners + rng.integers(1, [12, 8] - corners)], -1)
    points = rng.integers(0, [11, 7], (_COUNT, 3, 2))
    offsets = np.arange(_COUNT + 1)
    columns = {
        "boxes": AnnotationColumn("boxes", "image", "", boxes.astype(np.float64), offsets),
        "points": AnnotationColumn("points", "image", "boxes", points.astype(np.float64), None),
    }
    tracer = PointsTracer(Annotations(columns, SPECS, _COUNT), sizes)
    p = step.sample(rng.random((_COUNT, step.num_uniforms)))
    step.lower(tracer, p)
    seen: Any = tracer.annotations
    image = torch.arange(77).reshape(1, 7, 11)
    found = set()
    for n in range(_COUNT):
        turned = step.torch(image, {name: values[n] for name, values in p.items()})
        found.add(tuple(turned.shape[1:]))
        assert tuple(turned.shape[1:]) == tuple(tracer.size[n])
        x, y = points[n].T
        new_x, new_y = seen.values("points")[n].astype(int).T
        assert (turned[0, new_y, new_x] == image[0, y, x]).all()
        assert set(_cut(turned, seen.values("boxes")[n])) == set(_cut(image, boxes[n]))
    return found


def _cut(image: torch.Tensor, box: Any) -> list[int]:
    left, top, right, bottom = (int(n) for n in box)
    return image[0, top:bottom, left:right].flatten().tolist()
