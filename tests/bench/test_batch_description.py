"""The fields that `gpupipe check` names, against those of a batch."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe import config as configs
from gpupipe.bench import plan
from gpupipe.loader import create_loader
from gpupipe.loading.assembly import resolve
from helpers import coco_files

FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


def check_and_load(folder: Path, *steps: Any, **loader: Any) -> tuple[str, Any]:
    """Return what `check` says of a batch, and the first batch."""
    file = coco_files.write(folder, coco_files.document(points=17))
    data = {"source": "coco", "root": str(folder / "images"), "annotations": str(file)}
    loader = {"batch_size": 3, "shuffle": False, "device": "cpu", **loader}
    data |= {"keypoints": True}
    config = configs.read({"data": data, "pipeline": ["decode", *steps, FLOATS], "loader": loader})
    with create_loader(config) as created:
        batch = next(iter(created))
    (line,) = (line for line in plan.facts(resolve(config)) if line.startswith("batch: "))
    return line.removeprefix("batch: "), batch


def names_in(description: str) -> set[str]:
    return {part.split()[0] for part in re.split(r", (?=[a-z])", description)}


@pytest.mark.parametrize("targets", ["packed", "padded", "list"])
def test_all_fields_of_a_batch_with_boxes_are_named(tmp_path: Path, targets: str) -> None:
    shapes = "padded" if targets == "padded" else "equal"
    resize = {"resize": {"size": [20, 30]}}
    line, batch = check_and_load(tmp_path, resize, targets=targets, shapes=shapes)
    assert "image_id int64 (B,)" in line
    assert names_in(line) == batch.keys()


def test_the_targets_of_torchvision_are_a_list_of_dicts(tmp_path: Path) -> None:
    line, (images, targets) = check_and_load(tmp_path, format="torchvision", shapes="padded")
    first, _, rest = line.partition(", list of dicts of ")
    fields, _, note = rest.partition("; ")
    assert first == "list of float32 (3, H, W) contiguous"
    assert len({image.shape for image in images}) > 1
    assert names_in(fields) == targets[0].keys()
    assert "boxes BoundingBoxes float32 (N, 4)" in fields
    assert "keypoints float32 (N, K, 3 with visibility)" in fields
    assert targets[2]["keypoints"].shape == (2, 17, 3)
    assert "orig_size int64 (2)" in fields
    assert note.startswith("labels + 1")
    assert note.endswith("delivered as a list")


@pytest.mark.parametrize("format", ["detr", "huggingface"])
def test_padded_images_have_a_mask_and_targets(tmp_path: Path, format: str) -> None:
    line, batch = check_and_load(tmp_path, format=format, shapes="list")
    whole, _, rest = line.partition("list of dicts of ")
    fields, _, note = rest.partition("; ")
    assert names_in(whole) == batch.keys()
    image, mask, targets = batch.values()
    assert f"{[*batch][1]} {str(mask.dtype).removeprefix('torch.')} (B, H, W)" in whole
    assert names_in(fields) == targets[0].keys()
    assert isinstance(image, torch.Tensor)
    assert "fractions of the image" in note
    assert "images are padded" in note
