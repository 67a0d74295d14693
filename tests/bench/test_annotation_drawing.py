"""Boxes and points in the picture of a batch, whatever its format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.bench import grid
from gpupipe.bench.annotation_drawing import as_dict, draw_annotations
from gpupipe.dataset.spec import Spec
from helpers import coco_files

SPECS = {
    "boxes": Spec.of_boxes(),
    "labels": Spec.of_rows("int64", rows_with="boxes"),
    "keypoints": Spec.of_points(rows_with="boxes", count=2),
    "visibility": Spec.of_rows("int64", rows_with="boxes", shape=(2,), visibility_of="keypoints"),
}


def drawn(**rows: Any) -> Any:
    picture = Image.new("RGB", (80, 60))
    tensors = {name: torch.tensor(values) for name, values in rows.items()}
    draw_annotations(picture, tensors, SPECS, ["cat", "dog"])
    return np.asarray(picture).sum(-1)


def test_a_box_is_a_frame_with_the_name_of_its_class() -> None:
    pixels = drawn(boxes=[[10.0, 5.0, 70.0, 50.0]], labels=[1])
    assert (pixels[5, 10:71] > 0).all()
    assert (pixels[5:51, 70] > 0).all()
    assert pixels[:5].sum() == 0
    assert pixels[7:18, 12:40].any(), "the name"
    assert not drawn(boxes=[[10.0, 5.0, 70.0, 50.0]], labels=[-1])[7:18, 12:40].any()
    assert not drawn(boxes=[[0.0, 0.0, 0.0, 0.0]], labels=[1]).any(), "no box"


def test_points_that_are_visible_are_drawn() -> None:
    rows = {"keypoints": [[[20.0, 30.0], [50.0, 40.0]]], "visibility": [[2, 0]]}
    pixels = drawn(boxes=[[0.0, 0.0, 0.0, 0.0]], labels=[0], **rows)
    assert pixels[30, 20] > 0
    assert pixels[40, 50] == 0


def test_lines_of_a_skeleton_connect_points_that_are_visible() -> None:
    points = torch.tensor([[[20.0, 30.0], [60.0, 30.0], [20.0, 55.0]]])
    rows = {"keypoints": points, "visibility": torch.tensor([[2, 1, 0]])}
    picture = Image.new("RGB", (80, 60))
    draw_annotations(picture, rows, SPECS, [], [[0, 1], [0, 2], [1, 7]])
    pixels = np.asarray(picture).sum(-1)
    assert (pixels[30, 20:61] > 0).all()
    assert not pixels[40:, 20].any(), "point 2 is not visible"


@pytest.mark.parametrize(
    "options",
    [
        {"targets": "packed"},
        {"targets": "padded"},
        {"targets": "list"},
        {"format": "torchvision"},
        {"format": "detr"},
    ],
    ids=str,
)
def test_every_format_of_a_batch_makes_the_same_picture(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    file = coco_files.write(tmp_path, coco_files.document())
    data = {"source": "coco", "root": str(tmp_path / "images"), "annotations": str(file)}
    steps = ["decode", {"resize": {"size": [96, 96]}}]
    steps.append({"to_dtype": {"dtype": "float32", "scale": True}})
    settings = {"batch_size": 6, "device": "cpu", "shuffle": False, "seed": 0}
    pictures = []
    for changes in ({}, options):
        with gpupipe.load({"data": data, "pipeline": steps}, **settings, **changes) as loader:
            batch = next(iter(loader))
            pictures.append(np.asarray(grid.draw(loader, batch, 6)).astype(int))
    below = slice(grid.TEXT_HEIGHT, None)
    # A corner that is computed from shares may be rounded to the next pixel.
    assert (pictures[0][below] != pictures[1][below]).mean() < 0.01
    first, second = (pictures[0][below][:96, 96 * n : 96 * n + 96] for n in range(2))
    assert np.abs(first - first[0, 0]).max() <= 2, "image 0 has no boxes"
    assert np.abs(second - first[0, 0]).max() > 100


@pytest.mark.parametrize(
    "options",
    [{}, {"targets": "padded"}, {"shapes": "list"}, {"format": "torchvision"}, {"format": "detr"}],
    ids=str,
)
def test_a_batch_alone_shows_its_boxes(tmp_path: Path, options: dict[str, Any]) -> None:
    file = coco_files.write(tmp_path, coco_files.document())
    data = {"source": "coco", "root": str(tmp_path / "images"), "annotations": str(file)}
    steps = ["decode", {"resize": {"size": [96, 96]}}]
    steps.append({"to_dtype": {"dtype": "float32", "scale": True}})
    settings = {"batch_size": 2, "device": "cpu", "shuffle": False, "last_batch": "partial"}
    with gpupipe.load({"data": data, "pipeline": steps}, **settings, **options) as loader:
        picture = np.asarray(gpupipe.show(next(iter(loader)))).astype(int)[grid.TEXT_HEIGHT :]
    first, second = picture[:96, :96], picture[:96, 96:192]
    assert np.abs(first - first[0, 0]).max() <= 2, "image 0 has no boxes"
    assert np.abs(second - first[0, 0]).max() > 100


def test_other_batches_stay_as_they_are() -> None:
    for batch in ({"image": 1}, (torch.zeros(2, 3, 4, 4), torch.zeros(2))):
        assert as_dict(batch, "image", []) is batch
