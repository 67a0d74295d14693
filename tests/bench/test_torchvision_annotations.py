"""What torchvision's functionals make of annotations; test_boxes_and_points.py compares steps."""

import pytest
import torch
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import KeyPoints

from gpupipe.bench.torchvision_annotations import Annotated, has_functionals, move, wrap_boxes

CANVAS = (40, 60)


def draw(count: int, pairs: tuple[tuple[int, int], ...] = ()) -> Annotated:
    boxes = torch.tensor([[1.0, 2, 30, 20], [5, 5, 8, 9]], dtype=torch.float64)[:count]
    points = torch.tensor([[[3.0, 4], [50, 30]], [[6, 6], [7, 7]]], dtype=torch.float64)[:count]
    return Annotated(
        wrap_boxes(boxes, CANVAS, "soft"),
        KeyPoints(points, canvas_size=CANVAS),
        torch.arange(count),
        pairs,
    )


def test_a_flip_swaps_left_and_right_points() -> None:
    flipped = draw(2, ((0, 1),)).flip(F.horizontal_flip)
    assert flipped.boxes.tolist() == [[30, 2, 59, 20], [52, 5, 55, 9]]
    assert flipped.points.tolist() == [[[9, 30], [56, 4]], [[52, 7], [53, 6]]]
    assert draw(2).flip(F.horizontal_flip).points[0].tolist() == [[56, 4], [9, 30]]


@pytest.mark.parametrize("count", [0, 2])
def test_the_canvas_follows_also_without_rows(count: int) -> None:
    cropped = draw(count).apply(F.crop, 1, 2, 20, 25)
    assert cropped.size == (20, 25)
    assert tuple(cropped.boxes.shape) == (count, 4)


def test_rows_are_kept_together() -> None:
    kept = draw(2).keep(torch.tensor([False, True]))
    assert (kept.rows.tolist(), kept.boxes.tolist()) == ([1], [[5, 5, 8, 9]])
    assert kept.points.tolist() == [[[6, 6], [7, 7]]]


def test_a_step_without_functionals_changes_nothing() -> None:
    sample = draw(2)
    assert not has_functionals("color_jitter")
    assert move("color_jitter", None, {}, sample) is sample
    assert has_functionals("random_vertical_flip")
    flipped = move("random_vertical_flip", None, {"flip": 1}, sample)
    assert flipped.boxes[0].tolist() == [1, 20, 30, 38]
