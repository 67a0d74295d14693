"""Canvas: moves apply to some samples of a batch, and the matrix says where they lead."""

import numpy as np

from gpupipe.annotations.canvas import Canvas
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations

SPECS = {"boxes": Spec.of_boxes(), "points": Spec.of_points(count=1)}
NOT_THE_SECOND = np.array([True, False, True])


def draw_canvas() -> Canvas:
    """Three images of 40x60 with a box each, and one or two points."""
    boxes = np.array([[1, 2, 30, 20], [5, 5, 8, 9], [0, 0, 60, 40]], np.float64)
    points = np.array([[[3, 4]], [[59, 39]], [[7, 7]], [[0, 0]]], np.float64)
    columns = {
        "boxes": AnnotationColumn("boxes", "image", "", boxes, np.arange(4)),
        "points": AnnotationColumn("points", "image", "", points, np.array([0, 1, 3, 4])),
    }
    return Canvas(Annotations(columns, SPECS, 3), np.tile([40.0, 60.0], (3, 1)))


def move_all(canvas: Canvas) -> None:
    canvas.scale_and_shift(NOT_THE_SECOND, np.tile([30.0, 80.0], (3, 1)), 2.0, canvas.size[:, ::-1])
    canvas.set_size(NOT_THE_SECOND, np.tile([82.0, 32.0], (3, 1)))
    linear = np.tile(np.eye(2), (3, 1, 1))
    linear[NOT_THE_SECOND] = [[0, 1], [-1, 0]]
    canvas.mirror(NOT_THE_SECOND, linear, canvas.size)
    matrix = np.tile(np.eye(3), (3, 1, 1))
    matrix[:, 0, 1] = 0.25
    canvas.transform(NOT_THE_SECOND, matrix)


def test_moves_leave_the_samples_alone_that_are_not_present() -> None:
    canvas, before = draw_canvas(), draw_canvas().annotations
    move_all(canvas)
    assert canvas.num_moves == 3
    assert canvas.size.tolist() == [[82, 32], [40, 60], [82, 32]]
    for name in SPECS:
        is_second = before.samples(name) == 1
        is_equal = (canvas.annotations.values(name) == before.values(name)).all(-1)
        assert is_equal.reshape(len(is_second), -1).all(1).tolist() == is_second.tolist()


def test_the_matrix_leads_back_to_the_first_image() -> None:
    canvas, before = draw_canvas(), draw_canvas().annotations.values("boxes")
    move_all(canvas)
    matrix = canvas.to_original()
    assert matrix is not None
    assert matrix.dtype == np.float64
    np.testing.assert_allclose(matrix[1], np.eye(3))
    canvas.is_affine = False
    assert canvas.to_original() is None
    # The corners that a box begins with lead to corners that lead back.
    corners = np.stack([before[:, :2], before[:, 2:]], 1)
    moved = draw_canvas()
    seen: list[np.ndarray] = []
    move_all(moved)
    forward = np.linalg.inv(matrix)
    for n, points in enumerate(corners):
        there = points @ forward[n, :2, :2].T + forward[n, :2, 2]
        box = moved.annotations.values("boxes")[n]
        assert (there >= box[:2] - 1e-9).all()
        assert (there <= box[2:] + 1e-9).all()
        seen.append(there @ matrix[n, :2, :2].T + matrix[n, :2, 2])
    np.testing.assert_allclose(np.stack(seen), corners, atol=1e-9)


def test_boxes_end_at_the_border_and_a_fork_keeps_what_it_was() -> None:
    canvas = draw_canvas()
    fork = canvas.fork()
    everywhere = np.ones(3, bool)
    canvas.scale_and_shift(everywhere, None, np.tile([-10.0, -5.0], (3, 1)))
    canvas.set_size(everywhere, np.tile([20.0, 30.0], (3, 1)))
    canvas.end_at_borders(everywhere)
    assert canvas.annotations.values("boxes").tolist() == [
        [0, 0, 20, 15],
        [0, 0, 0, 4],
        [0, 0, 30, 20],
    ]
    assert canvas.annotations.values("points")[0].tolist() == [[-7, -1]]
    assert fork.size.tolist() == [[40, 60]] * 3
    assert fork.num_moves == 0
    original = fork.to_original()
    assert original is not None
    assert (original == np.eye(3)).all()
