"""The boxes and points that the gallery draws for steps that need some: one object in another."""

import numpy as np

from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec

CLASSES = ["whole", "part"]
SPECS = {
    "boxes": Spec.of_boxes(),
    "labels": Spec.of_rows("int64", rows_with="boxes"),
    "keypoints": Spec.of_points(rows_with="boxes", count=2),
}
_BOXES = np.array([[0.15, 0.1, 0.85, 0.9], [0.6, 0.55, 0.8, 0.8]])
"""[left, top, right, bottom] as shares of the photograph's width and height."""
_POINTS = np.array([[[0.35, 0.4], [0.65, 0.4]], [[0.65, 0.6], [0.75, 0.75]]])


def build_columns(size: tuple[int, int], count: int) -> dict[str, AnnotationColumn]:
    """Return the annotations of `count` samples of one photograph.

    Args:
        size: [width, height] of the photograph in pixels.
        count: The number of samples.
    """
    rows = {
        "boxes": (_BOXES * np.tile(size, 2)).astype(np.float32),
        "labels": np.arange(len(_BOXES)),
        "keypoints": (_POINTS * np.array(size)).astype(np.float32),
    }
    offsets = np.arange(count + 1) * len(_BOXES)
    return {
        name: AnnotationColumn(
            SPECS[name].kind,
            "image",
            "" if name == "boxes" else "boxes",
            np.concatenate([values] * count),
            offsets if name == "boxes" else None,
        )
        for name, values in rows.items()
    }
