"""PointsTracer: each primitive moves boxes and points as torchvision's functionals do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from gpupipe.annotations.points_tracer import PointsTracer
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations
from gpupipe.pipeline.geometry import affine_inverse, perspective_matrix
from gpupipe.pipeline.step import NoLoweringError

SIZE = (60, 90)
COUNT = 40
SPECS = {
    "boxes": Spec.of_boxes(),
    "points": Spec.of_points(rows_with="boxes", count=3),
    "visibility": Spec.of_rows("int64", rows_with="boxes", shape=(3,), visibility_of="points"),
}


def columns(count: int = COUNT) -> dict[str, AnnotationColumn]:
    """Boxes and points on two images of SIZE: `count` on the first, as many on the second."""
    rng = np.random.default_rng(3)
    height, width = SIZE
    boxes = np.sort(rng.random((2 * count, 2, 2)), 1) * [width, height]
    points = rng.random((2 * count, 3, 2)) * [width - 1, height - 1]
    offsets = np.array([0, count, 2 * count])
    return {
        "boxes": AnnotationColumn("boxes", "image", "", boxes.reshape(-1, 4), offsets),
        "points": AnnotationColumn("points", "image", "boxes", points, None),
        "visibility": AnnotationColumn("array", "image", "boxes", np.full((2 * count, 3), 2), None),
    }


def trace(
    move: Callable[[Any], None], count: int = COUNT, orientations: Any = None, size: Any = SIZE
) -> PointsTracer:
    sizes = np.tile(np.array(size, np.float64), (2, 1))
    annotations = Annotations(columns(count), SPECS, 2)
    tracer = PointsTracer(annotations, sizes, orientations)
    move(tracer)
    return tracer


def moved(tracer: PointsTracer, name: str) -> Any:
    assert tracer.annotations is not None
    return tracer.annotations.values(name)


def reference(function: Callable[..., Any]) -> tuple[Any, Any]:
    """What torchvision makes of the same boxes and points, and the canvas, in float64."""
    drawn = columns()
    boxes = tv_tensors.BoundingBoxes(
        torch.from_numpy(drawn["boxes"].values), format="XYXY", canvas_size=SIZE
    )
    points = tv_tensors.KeyPoints(torch.from_numpy(drawn["points"].values), canvas_size=SIZE)
    return function(boxes), function(points)


ANGLES = np.array([25.0, 25.0])
ZERO = np.zeros(2)


def affine(image: Any) -> None:
    linear = affine_inverse(ANGLES, ZERO + 1.2, ZERO + 5.0, ZERO - 3.0)
    center = image.width_height / 2.0
    image.warp(linear, center, center + np.array([4.0, -7.0]), "nearest", (0.0,))


def rotate(image: Any) -> None:
    linear = affine_inverse(-ANGLES, ZERO + 1.0, ZERO, ZERO)
    center = np.array([10.0, 20.0])
    image.warp(linear, center, center, "nearest", (0.0,))


def expand(image: Any) -> None:
    linear = affine_inverse(-ANGLES, ZERO + 1.0, ZERO, ZERO)
    center = image.width_height / 2.0
    image.warp(linear, center, center, "nearest", (0.0,), np.array([93.0, 108.0]))


START = np.array([[0.0, 0.0], [89.0, 0.0], [89.0, 59.0], [0.0, 59.0]])
END = np.array([[5.0, 3.0], [80.0, 1.0], [85.0, 50.0], [9.0, 55.0]])
COEFFICIENTS = perspective_matrix(START, END)


MOVES: dict[str, tuple[Callable[[Any], None], Callable[[Any], Any]]] = {
    "crop": (
        lambda image: image.crop([11, 7], [30, 50]),
        lambda inpt: F.crop(inpt, 11, 7, 30, 50),
    ),
    "crop outside": (
        lambda image: image.crop([-11, -7], [90, 120], (0.0,)),
        lambda inpt: F.crop(inpt, -11, -7, 90, 120),
    ),
    "pad": (
        lambda image: image.crop([-2, -1], [67, 96], (0.0,)),
        lambda inpt: F.pad(inpt, [1, 2, 5, 5]),
    ),
    "resize": (
        lambda image: image.resize([37, 113], "bilinear", True),
        lambda inpt: F.resize(inpt, [37, 113]),
    ),
    "horizontal flip": (
        lambda image: image.flip(horizontal=np.array([1, 1])),
        F.horizontal_flip,
    ),
    "vertical flip": (lambda image: image.flip(vertical=np.array([1, 1])), F.vertical_flip),
    "affine": (
        affine,
        lambda inpt: F.affine(inpt, 25.0, [4.0, -7.0], 1.2, [5.0, -3.0]),
    ),
    "rotate": (rotate, lambda inpt: F.rotate(inpt, 25.0, center=[10.0, 20.0])),
    "expand": (expand, lambda inpt: F.rotate(inpt, 25.0, expand=True)),
    "perspective": (
        lambda image: image.perspective(COEFFICIENTS, "bilinear", (0.0,)),
        lambda inpt: F.perspective(inpt, None, None, coefficients=COEFFICIENTS.ravel()[:8]),
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_coordinates_are_torchvisions(name: str) -> None:
    move, function = MOVES[name]
    tracer = trace(move)
    boxes, points = reference(function)
    assert tuple(tracer.size[0]) == tuple(boxes.canvas_size)
    np.testing.assert_allclose(moved(tracer, "boxes"), boxes.numpy(), rtol=0, atol=2e-5)
    np.testing.assert_allclose(moved(tracer, "points"), points.numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", MOVES)
def test_moves_leave_absent_samples_alone(name: str) -> None:
    move, _ = MOVES[name]
    together = trace(move)

    def on_second(image: Any) -> None:
        image.switch(np.array([0, 1]), [lambda part: None, move])

    tracer = trace(on_second)
    original = columns()
    for field in SPECS:
        values = moved(tracer, field)
        assert np.array_equal(values[:COUNT], original[field].values[:COUNT])
        assert np.array_equal(values[COUNT:], moved(together, field)[COUNT:])
    assert tracer.size[0].tolist() == list(SIZE)
    assert tracer.size[1].tolist() == together.size[1].tolist()


@pytest.mark.parametrize("name", MOVES)
def test_no_rows_are_moved_without_an_error(name: str) -> None:
    tracer = trace(MOVES[name][0], count=0)
    assert moved(tracer, "boxes").shape == (0, 4)
    assert moved(tracer, "points").shape == (0, 3, 2)
    assert tracer.size.tolist() == trace(MOVES[name][0]).size.tolist()


@pytest.mark.parametrize("name", [name for name in MOVES if name != "perspective"])
def test_the_way_back_is_a_matrix(name: str) -> None:
    tracer = trace(lambda image: None)
    assert tracer.annotations is not None
    tracer.annotations.clamps[:] = False
    before = moved(tracer, "points").copy()
    MOVES[name][0](tracer)
    matrix = tracer.to_original()
    assert matrix is not None
    assert matrix.shape == (2, 3, 3)
    back = moved(tracer, "points") @ matrix[0, :2, :2].T + matrix[0, :2, 2]
    # The matrix is that of boxes: a flip maps x to W - x, and a point to W - 1 - x.
    shift = {"horizontal flip": [1.0, 0.0], "vertical flip": [0.0, 1.0]}.get(name, [0.0, 0.0])
    np.testing.assert_allclose(back - shift, before, atol=1e-9)


def test_no_matrix_leads_back_from_a_perspective_even_of_other_samples() -> None:
    none = np.array([0, 0])
    move = MOVES["perspective"][0]
    tracer = trace(lambda image: image.switch(none, [lambda part: None, move]))
    assert tracer.to_original() is None


def test_points_outside_are_hidden_and_boxes_are_clamped() -> None:
    tracer = trace(MOVES["crop"][0])
    points, boxes = moved(tracer, "points"), moved(tracer, "boxes")
    inside = ((points >= 0) & (points < [50, 30])).all(-1)
    assert inside.any()
    assert not inside.all()
    assert np.array_equal(moved(tracer, "visibility"), np.where(inside, 2, 0))
    assert (boxes >= 0).all()
    assert (boxes <= [50, 30, 50, 30]).all()
    tracer = trace(lambda image: None)
    assert tracer.annotations is not None
    tracer.annotations.clamps[:] = False, True
    MOVES["crop"][0](tracer)
    assert (moved(tracer, "boxes")[:COUNT] < 0).any()
    assert (moved(tracer, "boxes")[COUNT:] >= 0).all()


def test_a_mirror_swaps_pairs_of_points_and_two_mirrors_do_not() -> None:
    specs = SPECS | {"points": Spec.of_points(rows_with="boxes", count=3, flip_pairs=[(0, 2)])}
    drawn = columns()
    drawn["visibility"].values[:, 0] = 1
    tracer = PointsTracer(Annotations(drawn, specs, 2), np.array([SIZE, SIZE], np.float64))
    tracer.flip(horizontal=np.array([1, 1]), vertical=np.array([0, 1]))
    points, before = moved(tracer, "points"), drawn["points"].values
    assert np.array_equal(points[:COUNT, :, 0], 89 - before[:COUNT, ::-1, 0])
    assert np.array_equal(points[COUNT:, :, 0], 89 - before[COUNT:, :, 0])
    assert moved(tracer, "visibility")[[0, COUNT]].tolist() == [[2, 2, 1], [1, 2, 2]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientations_move_points_with_their_pixels(orientation: int) -> None:
    stored = np.zeros((*SIZE, 3), np.uint8)
    stored[13, 71] = 255
    image = Image.fromarray(stored)
    image.getexif()[0x0112] = orientation
    upright = np.array(ImageOps.exif_transpose(image))
    (y,), (x,) = np.nonzero(upright[..., 0])
    drawn = columns()
    drawn["points"].values[:, 0] = 71, 13
    drawn["boxes"].values[:] = 71, 13, 72, 14
    tracer = PointsTracer(
        Annotations(drawn, SPECS, 2),
        np.array([upright.shape[:2]] * 2, np.float64),
        np.array([orientation, orientation]),
    )
    tracer.decode("rgb", True)
    assert moved(tracer, "points")[0, 0].tolist() == [x, y]
    assert moved(tracer, "boxes")[0].tolist() == [x, y, x + 1, y + 1]
    matrix = tracer.to_original()
    assert matrix is not None
    assert (matrix[0] @ [x + 0.5, y + 0.5, 1]).tolist() == [71.5, 13.5, 1]
    tracer.decode("rgb", False)
    assert moved(tracer, "points")[0, 0].tolist() == [x, y]


def test_elastic_points_move_by_the_inverse_field_within_a_pixel() -> None:
    """A point comes to lie where the pixel that it marked comes to lie."""
    height, width = SIZE
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([4 * np.sin(y / 7.0), 5 * np.cos(x / 9.0)], -1)
    field = torch.from_numpy(pixels * [2 / width, 2 / height])[None].float()
    drawn = columns()
    boxes, points = drawn["boxes"].values, np.rint(drawn["points"].values)
    drawn["points"].values[:] = points
    tracer = PointsTracer(Annotations(drawn, SPECS, 2), np.array([SIZE, SIZE], np.float64))
    tracer._displace(lambda n: field[0].numpy())
    marked = 0
    for before, after in zip(points[:, 0], moved(tracer, "points")[:, 0], strict=True):
        image = torch.zeros(1, *SIZE)
        image[0, int(before[1]), int(before[0])] = 1.0
        weights = F.elastic(image, field)[0].numpy()
        if weights.sum() > 0.5:
            place = [(weights * axis).sum() / weights.sum() for axis in (x, y)]
            assert np.abs(after - place).max() < 1.0
            marked += 1
    assert marked > COUNT
    assert np.abs(moved(tracer, "points") - points).max() > 4.0
    assert np.abs(moved(tracer, "boxes") - boxes).max() > 4.0
    assert tracer.to_original() is None


def test_a_box_at_the_border_stays_there_after_a_resize() -> None:
    """As x / W * W', since x * (W' / W) may be above W', which sanitizing would drop."""
    drawn = columns()
    drawn["boxes"].values[:, 2:] = SIZE[::-1]
    for side in range(1, 400):
        tracer = PointsTracer(Annotations(drawn, SPECS, 2), np.array([SIZE, SIZE], np.float64))
        tracer.resize([side, side + 7], "bilinear", True)
        assert (moved(tracer, "boxes")[:, 2:] == [side + 7, side]).all()


def test_random_displacements_are_those_of_the_image() -> None:
    elastic, seeds = ((40.0, 30.0), (2.0, 2.0)), np.array([5, 6])
    fields = np.stack([make_displacement(seed, SIZE, Elastic(*elastic)) for seed in seeds])
    drawn = trace(lambda image: image.elastic(seeds, *elastic, "bilinear", (0.0,)))
    fed = trace(lambda image: image._displace(lambda n: fields[n]))
    for name in ("points", "boxes"):
        assert np.array_equal(moved(drawn, name), moved(fed, name), equal_nan=True)
        assert (moved(drawn, name) != columns()[name].values).any()
    assert drawn.to_original() is None


def test_colours_change_nothing_and_mixtures_of_moved_images_are_refused() -> None:
    def recolor(part: Any) -> None:
        part.color_matrix(np.eye(3))
        part.color("invert")
        part.erase([0, 0], [5, 5], (0.0,))
        part.to_dtype("float32", True)
        part.normalize((0.0,), (1.0,))
        part.call_torch(lambda image: image)

    weights = np.ones((2, 2)) / 2
    tracer = trace(lambda image: image.blend([lambda part: None, recolor], weights))
    assert np.array_equal(moved(tracer, "boxes"), columns()["boxes"].values)
    with pytest.raises(NoLoweringError, match="no single place"):
        trace(lambda image: image.blend([lambda part: None, MOVES["crop"][0]], weights))
    with pytest.raises(NoLoweringError, match=r"operator fn\.water"):
        trace(lambda image: image.apply("fn.water", lambda node: node))


def test_a_fork_moves_alone() -> None:
    tracer = trace(MOVES["crop"][0])
    before = moved(tracer, "boxes").copy()
    fork = tracer.fork()
    fork.flip(horizontal=np.array([1, 1]))
    fork.resize([10, 10], "nearest", False)
    assert np.array_equal(moved(tracer, "boxes"), before)
    assert tracer.size.tolist() == [[30, 50]] * 2
    assert fork.size.tolist() == [[10, 10]] * 2
    assert not np.array_equal(moved(fork, "boxes"), before)


def test_the_padding_of_mirrored_pixels_moves_like_a_constant_one() -> None:
    mirrored = trace(lambda image: image.pad([2, 1], [5, 5], "reflect"))
    constant = trace(MOVES["pad"][0])
    assert np.array_equal(moved(mirrored, "boxes"), moved(constant, "boxes"))
    assert mirrored.size.tolist() == constant.size.tolist()
