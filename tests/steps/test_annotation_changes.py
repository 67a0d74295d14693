"""test_boxes_and_points.py compares these steps with torchvision's functionals."""

from typing import Any

import numpy as np
import pytest

from gpupipe.annotations.points_tracer import PointsTracer
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.pipeline.annotations import Annotations
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document

SPECS = {
    "boxes": Spec.of_boxes(),
    "labels": Spec.of_rows("int64", rows_with="boxes"),
    "keypoints": Spec.of_points(rows_with="boxes", count=2),
    "visibility": Spec.of_rows("int64", rows_with="boxes", shape=(2,), visibility_of="keypoints"),
}
BOXES = [[0, 0, 20, 10], [5, 5, 5.5, 9], [-1, 2, 8, 9], [3, 3, 6, 5], [2, 4, 20.5, 9]]
POINTS = [
    [[0, 0], [19.9, 9.9]],
    [[20, 3], [4, 4]],
    [[-0.1, 3], [4, 4]],
    [[1, 1], [3, 10]],
    [[1, 1], [2, 2]],
]


def run(*steps: Any, visibility: Any = None, images: int = 1) -> Annotations:
    """Run steps on images of 20x10 pixels, each with all BOXES and POINTS."""
    count = len(BOXES)
    visible = np.full((count, 2), 2) if visibility is None else np.array(visibility)
    rows = {
        "boxes": np.array(BOXES, np.float32),
        "labels": np.arange(count),
        "keypoints": np.array(POINTS, np.float32),
        "visibility": visible,
    }
    offsets = np.arange(images + 1) * count
    columns = {
        name: AnnotationColumn(
            SPECS[name].kind,
            "image",
            "" if name == "boxes" else "boxes",
            np.concatenate([values] * images),
            offsets if name == "boxes" else None,
        )
        for name, values in rows.items()
    }
    pipeline = build(*steps)
    seen = Annotations(columns, SPECS, images)
    tracer = PointsTracer(seen, np.tile([10.0, 20.0], (images, 1)))
    for entry in pipeline.entries:
        tracer.spec = entry.input_spec
        entry.lower(tracer, entry.parameters(0, 0, np.arange(images)))
    return seen


def build(*steps: Any, annotations: Any = None) -> Any:
    document = Document("steps", list(steps))
    fields = {"image": Spec.of_image(3)}
    return build_pipeline(
        "case", document, (), fields, SPECS if annotations is None else annotations
    )


def test_boxes_that_are_small_or_outside_go_with_all_that_goes_with_them() -> None:
    seen = run("sanitize_bounding_boxes")
    assert seen.values("labels").tolist() == [0, 3]
    assert seen.values("boxes").tolist() == [BOXES[0], BOXES[3]]
    assert len(seen.values("keypoints")) == len(seen.values("visibility")) == 2
    seen = run({"sanitize_bounding_boxes": {"min_size": 2.5}})
    assert seen.values("labels").tolist() == [0]
    seen = run({"sanitize_bounding_boxes": {"min_area": 6}})
    assert seen.values("labels").tolist() == [0, 3], "an area of 6 is not below 6"
    assert run({"sanitize_bounding_boxes": {"min_area": 6.1}}).values("labels").tolist() == [0]


def test_a_pose_with_a_point_outside_goes() -> None:
    assert run("sanitize_keypoints").values("labels").tolist() == [0, 4]


def test_points_that_are_not_labelled_do_not_count() -> None:
    """Those that the data set has not labelled; not those that have left the image."""
    visibility = [[2, 2], [0, 2], [1, 2], [2, 0], [0, 0]]
    seen = run("sanitize_keypoints", visibility=visibility)
    assert seen.values("labels").tolist() == [0, 1, 3, 4]
    seen = run({"center_crop": {"size": [10, 10]}}, "sanitize_keypoints", visibility=visibility)
    assert seen.values("labels").tolist() == [4]


def test_clamping_of_boxes() -> None:
    clamped = run("clamp_bounding_boxes").values("boxes").tolist()
    assert clamped[2] == [0, 2, 8, 9]
    assert clamped[4] == [2, 4, 20, 9]
    off = {"set_clamping_mode": {"clamping_mode": None}}
    for steps in (
        [off, "clamp_bounding_boxes"],
        [{"clamp_bounding_boxes": {"clamping_mode": None}}],
    ):
        assert run(*steps).values("boxes").tolist() == BOXES
    for mode in ("soft", "hard"):
        again = run(off, {"clamp_bounding_boxes": {"clamping_mode": mode}})
        assert again.values("boxes").tolist() == clamped
        again = run(off, {"set_clamping_mode": {"clamping_mode": mode}}, "clamp_bounding_boxes")
        assert again.values("boxes").tolist() == clamped


def test_clamping_of_points_leaves_hidden_ones_hidden() -> None:
    seen = run({"pad": {"padding": 0}}, "clamp_keypoints")
    assert seen.values("keypoints")[:4].tolist() == [
        [[0, 0], [19, 9]],
        [[19, 3], [4, 4]],
        [[0, 3], [4, 4]],
        [[1, 1], [3, 9]],
    ]
    assert seen.values("visibility")[:4].tolist() == [[2, 2], [0, 2], [0, 2], [2, 0]]


@pytest.mark.parametrize(
    ("format", "expected"),
    [("XYXY", [3, 3, 6, 5]), ("xywh", [3, 3, 3, 2]), ("CXCYWH", [4.5, 4, 3, 2])],
)
def test_formats(format: str, expected: list[float]) -> None:
    """Steps after it work on any format, as torchvision's do."""
    convert = {"convert_bounding_box_format": {"format": format}}
    seen = run(convert)
    assert seen.delivered("boxes")[3].tolist() == expected
    assert seen.delivered("boxes").dtype == np.float32
    for later in ({"random_horizontal_flip": {"p": 1}}, {"resize": {"size": [7, 9]}}):
        assert (
            run(convert, later).delivered("boxes") == run(later, convert).delivered("boxes")
        ).all()


@pytest.mark.parametrize(
    "step",
    [
        {"sanitize_bounding_boxes": {"min_size": 4}},
        "sanitize_keypoints",
        "clamp_bounding_boxes",
        "clamp_keypoints",
    ],
    ids=str,
)
def test_in_a_container_only_the_samples_that_run_it_change(step: Any) -> None:
    images = 40
    seen = run({"random_apply": {"transforms": [step]}}, images=images)
    alone = run(step)
    ends = seen.offsets("boxes")
    changed = 0
    for n in range(images):
        rows = slice(*ends[n : n + 2])
        now = [seen.values(name)[rows].tolist() for name in ("boxes", "keypoints", "labels")]
        before = [BOXES, np.array(POINTS, np.float32).tolist(), list(range(5))]
        after = [alone.values(name).tolist() for name in ("boxes", "keypoints", "labels")]
        assert now in (before, after)
        changed += now == after
    assert 10 < changed < 30


def test_the_clamping_mode_is_one_of_each_sample() -> None:
    off = {"set_clamping_mode": {"clamping_mode": None}}
    seen = run({"random_apply": {"transforms": [off]}}, "clamp_bounding_boxes", images=40)
    lowest = seen.values("boxes").reshape(40, 5, 4).min((1, 2))
    assert (lowest[seen.clamps] == 0).all()
    assert (lowest[~seen.clamps] == -1).all()
    assert 10 < seen.clamps.sum() < 30


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            {"random_apply": {"transforms": [{"convert_bounding_box_format": {"format": "XYWH"}}]}},
            "convert_bounding_box_format changes what all samples of a batch share: move it out of "
            "the list",
        ),
        (
            {"convert_bounding_box_format": {"format": "XYWHR"}},
            "format is 'XYWHR', but should be 'XYXY', 'XYWH' or 'CXCYWH'",
        ),
        (
            {"sanitize_bounding_boxes": {"min_size": 0.5}},
            "min_size is 0.5, but should be at least 1",
        ),
        ({"pad": {"padding": 2, "padding_mode": "reflect"}}, "write padding_mode: constant"),
        (
            {"random_crop": {"size": 5, "padding": 2, "padding_mode": "edge"}},
            "pad.* repeats parts of objects in a border without boxes",
        ),
        (
            {"random_apply": {"transforms": [{"pad": {"padding": 2, "padding_mode": "edge"}}]}},
            "random_apply cannot stand here, since the images have boxes and points: padding_mode",
        ),
    ],
    ids=str,
)
def test_mistakes(step: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(step)


def test_five_crop_is_refused_with_a_reason() -> None:
    views = {"steps": [], "views": {"crop": {"count": 5, "steps": [{"five_crop": {"size": 5}}]}}}
    document, fields = Document("steps", views), {"image": Spec.of_image(3, 10, 20)}
    assert build_pipeline("case", document, (), fields).entries
    with pytest.raises(ConfigError, match=r"five_crop cannot stand here, .* several of its crops"):
        build_pipeline("case", document, (), fields, SPECS)


@pytest.mark.parametrize(
    ("step", "kind"),
    [("sanitize_bounding_boxes", "boxes"), ("clamp_keypoints", "points")],
)
def test_without_annotations_the_steps_are_refused(step: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{step} needs {kind} on the field 'image'"):
        build(step, annotations={})
    with pytest.raises(ConfigError, match=f"random_apply needs {kind}"):
        build({"random_apply": {"transforms": [step]}}, annotations={})
