"""Annotations: what a step sees of a batch's boxes, and what it may change."""

import numpy as np
import pytest

from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations, BoxFormat, convert_boxes

SPECS = {
    "boxes": Spec.of_boxes(),
    "labels": Spec.of_rows("int64", rows_with="boxes"),
    "points": Spec.of_points(rows_with="boxes", count=2),
    "visibility": Spec.of_rows("int64", rows_with="boxes", shape=(2,), visibility_of="points"),
    "tags": Spec.of_rows("int64"),
}


def annotations() -> Annotations:
    """Three samples, with 2, 0 and 1 boxes, and 0, 1 and 1 tags."""
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    values = {
        "boxes": boxes,
        "labels": np.array([7, 8, 9]),
        "points": np.zeros((3, 2, 2), np.float32),
        "visibility": np.full((3, 2), 2),
        "tags": np.array([5, 6]),
    }
    owners = {"boxes": np.array([0, 2, 2, 3]), "tags": np.array([0, 0, 1, 2])}
    columns = {}
    for name, array in values.items():
        annotation = SPECS[name].annotation
        assert annotation is not None
        columns[name] = AnnotationColumn(
            SPECS[name].kind, "image", annotation.rows_with, array, owners.get(name)
        )
    return Annotations(columns, SPECS, 3)


def test_rows_belong_to_samples() -> None:
    seen = annotations()
    assert seen.names("boxes") == ["boxes"]
    assert seen.samples("labels").tolist() == [0, 0, 2]
    assert seen.offsets("labels").tolist() == [0, 2, 2, 3]
    assert seen.offsets("tags").tolist() == [0, 0, 1, 2]
    assert seen.values("boxes").dtype == np.float64
    assert seen.visibility("points") == "visibility"
    assert seen.visibility("boxes") is None


def test_fields_lose_the_same_rows() -> None:
    seen = annotations()
    seen.keep("labels", np.array([False, True, True]))
    seen.keep("boxes", np.array([True, False]))
    assert seen.values("labels").tolist() == [8]
    assert seen.values("boxes").tolist() == [[4, 5, 6, 7]]
    assert seen.values("points").shape == (1, 2, 2)
    assert seen.values("visibility").tolist() == [[2, 2]]
    assert seen.offsets("boxes").tolist() == [0, 1, 1, 1]
    assert seen.values("tags").tolist() == [5, 6]


def test_a_fork_leaves_the_original_alone() -> None:
    first = annotations()
    other = first.fork()
    other.keep("boxes", np.zeros(3, bool))
    other.replace("boxes", np.zeros((0, 4)))
    other.clamps[:] = False
    assert len(first.values("boxes")) == 3
    assert first.clamps.all()
    assert len(other.delivered("labels")) == 0


@pytest.mark.parametrize(
    ("format", "expected"),
    [("XYXY", [1, 2, 5, 8]), ("XYWH", [1, 2, 4, 6]), ("CXCYWH", [3, 5, 4, 6])],
)
def test_formats(format: BoxFormat, expected: list[float]) -> None:
    box = np.array([[1.0, 2.0, 5.0, 8.0]])
    assert convert_boxes(box, format).tolist() == [expected]
    assert convert_boxes(box[:0], format).shape == (0, 4)


def test_delivered_rows_have_the_dtype_of_their_spec() -> None:
    seen = annotations()
    seen.format = "XYWH"
    boxes = seen.delivered("boxes")
    assert boxes.dtype == np.float32
    assert boxes[0].tolist() == [0, 1, 2, 2]
    assert seen.delivered("labels").dtype == np.int64
