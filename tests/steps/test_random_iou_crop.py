"""test_iou_windows.py compares the windows with torchvision's, test_boxes_and_points.py the
boxes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.annotations.batch_annotations import annotate
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.step import Spec
from gpupipe.schema.document import Document
from gpupipe.steps.random_iou_crop import RandomIoUCrop
from helpers import annotated_folder
from helpers.arrays import ENGINES
from helpers.pipeline_texts import mistakes

STEPS: list[Any] = ["decode", "random_iou_crop", "sanitize_bounding_boxes"]


def test_all_engines_cut_the_same_windows(small_gallery: Path) -> None:
    """Batches of one, as sizes differ."""
    epochs = [
        annotated_folder.by_sample(
            annotated_folder.load(small_gallery, STEPS, batch_size=1, **options)
        )
        for options in ENGINES.values()
    ]
    first = epochs[0]
    for other in epochs[1:]:
        annotated_folder.assert_equal(first, other)
        for number, sample in first.items():
            image = other[number]["image"]
            assert sample["image"].shape == image.shape
            assert float((sample["image"].int() - image.int()).abs().max()) <= 1
    whole = annotated_folder.by_sample(
        annotated_folder.load(small_gallery, ["decode"], batch_size=1)
    )
    cropped = [n for n in first if first[n]["image"].shape != whole[n]["image"].shape]
    assert cropped
    assert all(len(whole[n]["boxes"]) for n in cropped), "without boxes an image stays whole"
    assert all(len(first[n]["boxes"]) for n in cropped), "a window has at least one box"


def test_the_reference_cuts_the_window() -> None:
    step = RandomIoUCrop()
    image = torch.arange(3 * 40 * 50).reshape(3, 40, 50).to(torch.uint8)
    p = {"crops": 1, "anchor": np.array([3.0, 7.0]), "shape": np.array([20.0, 30.0])}
    assert torch.equal(step.torch(image, p), image[:, 3:23, 7:37])
    assert torch.equal(step.torch(image, p | {"crops": 0}), image)


def test_a_mask_gets_the_window_of_its_image() -> None:
    steps = [{"random_iou_crop": {"on": ["image", "mask"]}}]
    fields = {"image": Spec.of_image(3), "mask": replace(Spec.of_image(1), kind="mask")}
    specs = {"boxes": Spec.of_boxes()}
    pipeline = build_pipeline("case", Document("case", steps), (), fields, specs)
    ids = np.arange(20)
    boxes = np.tile(np.array([[10, 10, 90, 50]], np.float32), (20, 1))
    columns = {"boxes": AnnotationColumn("boxes", "image", "", boxes, np.arange(21))}
    drawn = {
        name: [(entry, entry.parameters(0, 0, ids)) for entry in pipeline.entries_on(name)]
        for name in fields
    }
    sizes = {name: np.tile([60.0, 100.0], (20, 1)) for name in fields}
    found = annotate(pipeline, columns, drawn, sizes, {}, {})
    image, mask = found.parameters["image"][0], found.parameters["mask"][0]
    assert 5 < image["crops"].sum() < 20
    assert image.keys() == mask.keys()
    assert all((image[name] == mask[name]).all() for name in image)


def test_what_is_known_of_the_size() -> None:
    made = RandomIoUCrop(min_scale=0.5).infer_spec(Spec.of_image(3, 41, 50))
    assert (made.size, made.at_least) == (None, (20, 25))
    assert RandomIoUCrop().infer_spec(Spec.of_image(3, 2, 50)).at_least == (1, 15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{min_scale: 0}", "2:32: random_iou_crop.min_scale is 0, but should be above 0"),
        (
            "{min_scale: 0.5, max_scale: 0.4}",
            "2:20: random_iou_crop: min_scale is 0.5, but max_scale is 0.4: swap them",
        ),
        ("{trials: 0}", "2:29: random_iou_crop.trials is 0, but should be at least 1"),
        (
            "{}",
            "2:3: random_iou_crop needs boxes on the field 'image', which has none: read them with "
            "a source of annotations, or leave the step out",
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert message in mistakes("decode", f"random_iou_crop: {text}")
