"""Every step that moves pixels moves boxes and points as torchvision's functionals do.

With GPUPIPE_TEST_ALL=1 (`make test-all`) each case has 10,000 samples.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.tv_tensors import KeyPoints

from gpupipe.annotations.points_tracer import PointsTracer
from gpupipe.bench.torchvision_annotations import Annotated, move, wrap_boxes
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.entry import Entry
from gpupipe.schema.document import Document
from helpers.full_product import IS_FULL

SAMPLES = 10_000 if IS_FULL else 60
TOLERANCE = 1e-3
"""Pixels."""
POINTS = 3
SPECS = {
    "boxes": Spec.of_boxes(),
    "number": Spec.of_rows("int64", rows_with="boxes"),
    "points": Spec.of_points(rows_with="boxes", count=POINTS),
}
SANITIZE: list[Any] = ["clamp_bounding_boxes", "sanitize_bounding_boxes"]
CASES: list[list[Any]] = [
    [{"resize": {"size": [200, 300]}}],
    [{"resize": {"size": 150, "max_size": 210}}],
    [{"random_resize": {"min_size": 90, "max_size": 400}}],
    [{"random_shortest_size": {"min_size": [100, 150, 200], "max_size": 260}}],
    [{"scale_jitter": {"target_size": [300, 200]}}],
    [{"letterbox": {"size": [160, 300]}}],
    [{"letterbox": {"size": 700, "scaleup": False, "center": False}}],
    [{"center_crop": {"size": [150, 180]}}],
    [{"random_crop": {"size": [60, 50]}}],
    [{"random_crop": {"size": [300, 150], "padding": [3, 5, 7, 11], "pad_if_needed": True}}],
    [{"random_resized_crop": {"size": [120, 90]}}],
    [{"fixed_size_crop": {"size": [200, 150]}}],
    [{"random_size_crop": {"min_size": 80, "max_size": 200}}],
    ["random_iou_crop"],
    [{"pad": {"padding": [3, 5, 7, 11]}}],
    ["random_zoom_out"],
    ["random_horizontal_flip"],
    ["random_vertical_flip"],
    [{"random_affine": {"degrees": 40, "translate": [0.2, 0.3], "scale": [0.5, 2], "shear": 20}}],
    [{"random_affine": {"degrees": 180, "center": [10, 90], "shear": [-9, 9, -20, 20]}}],
    [{"random_rotation": {"degrees": 180}}],
    [{"random_rotation": {"degrees": 180, "expand": True}}],
    [{"random_rotation": {"degrees": [90, 90], "expand": True}}],
    [{"random_rotation": {"degrees": 30, "center": [30, 40], "expand": True}}],
    [{"random_perspective": {"p": 0.8}}],
    [{"random_perspective": {"p": 1, "distortion_scale": 0.9}}],
    # the SSD recipe, and DETR's
    [
        "random_zoom_out",
        "random_iou_crop",
        "random_horizontal_flip",
        {"resize": {"size": [99, 99]}},
    ],
    [
        "random_horizontal_flip",
        {
            "random_choice": {
                "transforms": [
                    {"random_shortest_size": {"min_size": [120, 140], "max_size": 200}},
                    {
                        "random_apply": {
                            "p": 1,
                            "transforms": [
                                {"random_shortest_size": {"min_size": [90, 110]}},
                                {"random_size_crop": {"min_size": 70, "max_size": 100}},
                                {"random_shortest_size": {"min_size": [120, 140]}},
                            ],
                        }
                    },
                ]
            }
        },
    ],
    [
        {
            "random_order": {
                "transforms": [{"random_rotation": {"degrees": 20}}, {"pad": {"padding": 9}}]
            }
        },
        {"random_apply": {"p": 0.5, "transforms": ["random_iou_crop", "random_vertical_flip"]}},
    ],
    # clamping
    [
        {"set_clamping_mode": {"clamping_mode": None}},
        {"random_affine": {"degrees": 40, "translate": [0.5, 0.5]}},
        {"clamp_bounding_boxes": {"clamping_mode": "soft"}},
    ],
    [
        {"random_apply": {"transforms": [{"set_clamping_mode": {"clamping_mode": None}}]}},
        {"random_crop": {"size": 50}},
        "clamp_bounding_boxes",
        "clamp_keypoints",
    ],
    [{"random_crop": {"size": 55}}, "sanitize_keypoints"],
    [{"random_crop": {"size": 50}}, {"sanitize_bounding_boxes": {"min_size": 9, "min_area": 300}}],
]


def entries_of(steps: list[Any]) -> list[Entry]:
    pipeline = build_pipeline(
        "case", Document("case", steps), fields={"image": Spec.of_image(3)}, annotations=SPECS
    )
    return list(pipeline.entries)


def draw_samples(count: int, size: tuple[int, int] | None = None) -> tuple[Any, Any, Any, Any]:
    """Draw the sizes (B, 2), boxes (sum N, 4), points (sum N, 3, 2) and offsets of some samples.

    Some boxes are small, some lie at the borders, and every fifth sample has none.
    """
    generator = np.random.default_rng(7)
    sizes = generator.integers(61, 400, (count, 2)).astype(np.float64)
    if size is not None:
        sizes[:] = size
    counts = generator.integers(1, 9, count) * (np.arange(count) % 5 > 0)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    width_height = np.repeat(sizes, counts, 0)[:, ::-1]
    centers = generator.random((offsets[-1], 2)) * width_height
    sides = np.exp(generator.uniform(0, np.log(200), (offsets[-1], 2)))
    boxes = np.clip(
        np.concatenate([centers - sides / 2, centers + sides / 2], -1), 0, np.tile(width_height, 2)
    )
    points = generator.random((offsets[-1], POINTS, 2)) * width_height[:, None]
    return sizes, boxes, points, offsets


def run(entries: list[Entry], sizes: Any, boxes: Any, points: Any, offsets: Any) -> Any:
    """Run steps on the back end that moves coordinates.

    Returns:
        The tracer, and the parameters of each step.
    """
    columns = {
        "boxes": AnnotationColumn("boxes", "image", "", boxes, offsets),
        "number": AnnotationColumn("array", "image", "boxes", np.arange(len(boxes)), None),
        "points": AnnotationColumn("points", "image", "boxes", points, None),
    }
    tracer = PointsTracer(Annotations(columns, SPECS, len(sizes)), sizes)
    return tracer, trace(tracer, entries)


def trace(tracer: PointsTracer, entries: list[Entry]) -> list[Any]:
    """Run steps, and return the parameters of each."""
    drawn = []
    for entry in entries:
        parameters = entry.parameters(3, 0, np.arange(len(tracer.size)))
        tracer.spec = entry.input_spec
        entry.lower(tracer, parameters)
        drawn.append(parameters)
    return drawn


def begin(size: Any, boxes: Any, points: Any, numbers: Any) -> Annotated:
    """Return the annotations of one sample before the first step."""
    canvas = (int(size[0]), int(size[1]))
    return Annotated(
        wrap_boxes(torch.from_numpy(boxes), canvas, "soft"),
        KeyPoints(torch.from_numpy(points), canvas_size=canvas),
        torch.from_numpy(numbers),
    )


def expect(entries: list[Entry], drawn: Any, sample: int, annotated: Annotated) -> Annotated:
    """Return what torchvision makes of the annotations of one sample."""
    for entry, parameters in zip(entries, drawn, strict=False):
        p = {name: values[sample] for name, values in parameters.items()}
        annotated = move(entry.name, entry.step, p, annotated)
    return annotated


@pytest.mark.parametrize("steps", CASES, ids=lambda steps: str(steps)[:60])
def test_coordinates_and_the_boxes_that_are_kept_are_torchvisions(steps: list[Any]) -> None:
    """All rows after the steps, and after clamp_bounding_boxes and sanitize_bounding_boxes.

    torchvision's resize rounds its factor to float32, which may move a box beyond the border.
    """
    entries = entries_of([*steps, *SANITIZE])
    sizes, boxes, points, offsets = draw_samples(SAMPLES)
    moved = entries[: -len(SANITIZE)]
    tracer, drawn = run(moved, sizes, boxes, points, offsets)
    before = list_rows(tracer)
    drawn += trace(tracer, entries[len(moved) :])
    after = list_rows(tracer)
    for n in range(SAMPLES):
        rows = slice(*offsets[n : n + 2])
        start = begin(sizes[n], boxes[rows], points[rows], np.arange(len(boxes))[rows])
        expected = expect(moved, drawn, n, start)
        compare(before[n], expected, n)
        compare(after[n], expect(entries[len(moved) :], drawn[len(moved) :], n, expected), n)


def list_rows(tracer: PointsTracer) -> list[dict[str, Any]]:
    """Return the current rows of each sample, and the size of its canvas."""
    seen = tracer.annotations
    assert seen is not None
    parts = {name: np.split(seen.values(name), seen.offsets(name)[1:-1]) for name in SPECS}
    return [
        {name: parts[name][n] for name in SPECS} | {"size": size}
        for n, size in enumerate(tracer.size.tolist())
    ]


def compare(ours: dict[str, Any], expected: Annotated, n: int) -> None:
    """Assert that a sample has the rows that torchvision has, at the same place."""
    assert ours["number"].tolist() == expected.rows.tolist(), n
    assert ours["size"] == list(expected.size), n
    for name, theirs in (("boxes", expected.boxes), ("points", expected.points)):
        assert ours[name].shape == tuple(theirs.shape)
        if len(ours[name]):
            assert np.abs(ours[name] - theirs.numpy()).max() < TOLERANCE, (n, name)
