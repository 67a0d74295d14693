import shutil
from pathlib import Path
from typing import Any

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
import yaml
from albumentations.pytorch import ToTensorV2
from PIL import Image

import gpupipe
from helpers import annotated_folder, loaders
from helpers.reference import by_id

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.fixture
def few_photos(photos: Path, tmp_path: Path) -> Path:
    """Five photographs in a class folder."""
    (tmp_path / "class").mkdir()
    for path in sorted(photos.rglob("*.jpg"))[:5]:
        shutil.copy(path, tmp_path / "class")
    return tmp_path


def test_a_recipe_becomes_steps_alone(recwarn: pytest.WarningsRecorder) -> None:
    compose = A.Compose(
        [
            A.RandomResizedCrop((224, 200), scale=(0.2, 1)),
            A.HorizontalFlip(),
            A.OneOf([A.RandomGamma(p=1), A.RandomBrightnessContrast(p=3 / 4)], p=0.3),
            A.Rotate(limit=15, p=0.2),
            A.D4(p=0.5),
            A.CoarseDropout((1, 8), (8, 32), (8, 16), fill=(1, 2, 3)),
            A.Normalize(),
            ToTensorV2(),
        ]
    )
    steps = gpupipe.from_albumentations(compose)
    rotation = {"random_rotation": {"degrees": [-15, 15], "interpolation": "bilinear"}}
    turns = [{"random_rotate_90": {"p": 1.0}}, "random_horizontal_flip"]
    forced = [{"random_gamma": {"p": 1.0}}, {"random_brightness_contrast": {"p": 1.0}}]
    choice = {"p": [4 / 7, 3 / 7], "transforms": forced}
    holes = {"hole_height_range": [8, 32], "hole_width_range": [8, 16]}
    assert steps == [
        "decode",
        {"random_resized_crop": {"size": [224, 200], "scale": [0.2, 1], "antialias": False}},
        "random_horizontal_flip",
        {"random_apply": {"p": 0.3, "transforms": [{"random_choice": choice}]}},
        {"random_apply": {"p": 0.2, "transforms": [rotation]}},
        {"random_apply": {"p": 0.5, "transforms": turns}},
        {"coarse_dropout": {"num_holes_range": [1, 8], **holes, "fill": [1, 2, 3]}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": IMAGENET},
    ]
    assert yaml.safe_load(str(steps)) == steps
    assert not recwarn.list


def test_values_are_normalized_as_albumentations_does(few_photos: Path) -> None:
    compose = A.Compose([A.Resize(40, 50, interpolation=cv2.INTER_NEAREST), A.Normalize()])
    with loaders.load(few_photos, gpupipe.from_albumentations(compose)) as loader:
        for id, image in by_id(loader).items():
            pixels = np.array(Image.open(loader.index.location(id)).convert("RGB"))
            expected = torch.from_numpy(compose(image=pixels)["image"]).permute(2, 0, 1)
            assert (image - expected).abs().max() < 0.02  # a level of the decoder


def test_other_transforms_are_called_with_seeds_of_their_samples(few_photos: Path) -> None:
    compose = A.Compose(
        [A.Resize(40, 50), A.GridDistortion(p=1), A.SomeOf([A.Blur(), A.CLAHE()], 2)]
    )
    with pytest.warns(UserWarning, match=r"transforms\[1\] \(GridDistortion\)") as warned:
        steps = gpupipe.from_albumentations(compose)
    assert "transforms[2] (SomeOf): a step 'python' calls" in str(warned[0].message)
    assert "transforms[0]" not in str(warned[0].message)
    epochs = []
    for options in ({"engine": "cpu", "batch_size": 4}, {"engine": "dataloader", "batch_size": 1}):
        with loaders.load(few_photos, yaml.safe_load(str(steps)), **options) as loader:
            epochs.append(by_id(loader))
            loader.sampler.set_epoch(1)
            epochs.append(by_id(loader))
    first, second, alone, _ = epochs
    assert all((first[id].int() - alone[id].int()).abs().max() <= 1 for id in first)
    assert any(not torch.equal(first[id], second[id]) for id in first)


def test_a_forced_container_draws_as_in_albumentations() -> None:
    """A OneOf forces its transforms, but SomeOf and OneOrOther go by their own p."""
    pair = [A.VerticalFlip(p=0.2), A.InvertImg(p=0.2)]
    inner = [A.SomeOf(pair, n=1, p=0.6), A.OneOrOther(*pair, p=0.3), A.OneOf(pair, p=0.1)]
    (choice,) = gpupipe.from_albumentations(A.OneOf(inner, p=1))[1:]
    some, either, one = choice["random_choice"]["transforms"]
    flips = [{"random_vertical_flip": {"p": 0.2}}, {"random_invert": {"p": 0.2}}]
    forced = [{"random_vertical_flip": {"p": 1.0}}, {"random_invert": {"p": 1.0}}]
    nested = [{"random_choice": {"transforms": flips}}]
    assert some == {"random_apply": {"p": 0.6, "transforms": nested}}
    assert either == {"random_choice": {"p": [0.3, 0.7], "transforms": forced}}
    assert one == {"random_choice": {"transforms": forced}}


def test_masks_go_through_what_moves_pixels() -> None:
    compose = A.Compose(
        [
            A.HorizontalFlip(),
            A.Pad(4, fill=7, fill_mask=255),
            A.RandomOrder([A.Transpose(), A.InvertImg()], n=2),
            A.CoarseDropout(fill_mask=9),
        ]
    )
    on = {"on": ["image", "seg"]}
    assert gpupipe.from_albumentations(compose, masks=["seg"]) == [
        {"decode": {"mode": "rgb", "on": "image"}},
        {"decode": {"mode": "gray", "on": ["seg"]}},
        {"random_horizontal_flip": on},
        {"pad": {"padding": 4, "fill": {"image": 7, "mask": 255}, **on}},
        {"random_order": {"transforms": ["transpose", "random_invert"], **on}},
        {"coarse_dropout": {"fill": {"image": 0, "mask": 9}, **on}},
    ]


def test_boxes_and_points_are_dropped_as_the_params_say() -> None:
    compose = A.Compose(
        [A.RandomCrop(64, 64), A.CLAHE()],
        bbox_params=A.BboxParams("coco", min_area=25, min_width=3, min_height=3),
        keypoint_params=A.KeypointParams("xy"),
    )
    with pytest.warns(UserWarning, match="CLAHE"):
        steps = gpupipe.from_albumentations(compose)
    sanitize = {"sanitize_bounding_boxes": {"min_size": 3, "min_area": 25}}
    assert steps[1] == {"random_crop": {"size": [64, 64]}}
    assert steps[2]["python"]["moves_pixels"] is False
    assert steps[3:] == [sanitize, "sanitize_keypoints"]


def test_boxes_and_points_of_a_source_are_those_of_albumentations(few_photos: Path) -> None:
    """Through steps and a function that moves nothing, where all parameters are certain."""
    compose = A.Compose(
        [
            A.HorizontalFlip(p=1),
            A.Resize(90, 70),
            A.CLAHE(p=1),
            A.Transpose(p=1),
            A.CenterCrop(60, 80),
        ],
        bbox_params=A.BboxParams("pascal_voc", min_width=1, min_height=1),
        keypoint_params=A.KeypointParams("xy", remove_invisible=False),
    )
    with pytest.warns(UserWarning, match="CLAHE"):
        steps = gpupipe.from_albumentations(compose)
    with annotated_folder.load(few_photos, steps, shapes="list") as loader:
        samples = annotated_folder.by_sample(loader)
    counts = []
    for id, sample in samples.items():
        with Image.open(loader.index.location(id)) as image:
            pixels = np.array(image.convert("RGB"))
        drawn = annotated_folder.draw(id, pixels.shape[:2], 8)
        rows = np.concatenate([drawn["boxes"], drawn["labels"][:, None]], -1)
        points = drawn["keypoints"].reshape(-1, 2)
        expected = compose(image=pixels, bboxes=rows, keypoints=points)
        boxes = np.reshape(expected["bboxes"], (-1, 5))
        assert np.abs(sample["boxes"].numpy() - boxes[:, :4]).max(initial=0) < 0.01
        assert sample["labels"].tolist() == boxes[:, 4].astype(int).tolist()
        counts.append((len(rows), len(boxes)))
        if len(rows) == len(boxes):
            moved = sample["keypoints"].numpy().reshape(-1, 2)  # two mirrors swap no pair
            assert np.abs(moved - expected["keypoints"]).max(initial=0) < 0.01
    assert sum(kept for _, kept in counts) > 5


@pytest.mark.parametrize(
    ("transform", "called"),
    [
        (A.Resize(9, 9, interpolation=cv2.INTER_AREA), True),
        (A.Rotate(border_mode=cv2.BORDER_REFLECT_101), True),
        (A.CoarseDropout(fill="random"), True),
        (A.Posterize((3, 5)), True),
        (A.SomeOf([A.CLAHE(), A.InvertImg()], n=2, replace=True), True),
        (A.SomeOf([A.VerticalFlip(), A.InvertImg()], n=1), False),
        (A.OneOrOther(A.VerticalFlip(), A.Transpose()), False),
        (A.ToFloat(), False),
        (A.NoOp(), False),
    ],
    ids=repr,
)
def test_parameters_that_no_step_has_are_called(
    transform: Any, called: bool, recwarn: pytest.WarningsRecorder
) -> None:
    steps = gpupipe.from_albumentations(transform)
    assert any(isinstance(step, dict) and "python" in step for step in steps) == called
    assert len(recwarn.list) == called


class _OtherLibrary:
    __module__ = "torchvision.transforms"


@pytest.mark.parametrize(
    ("transform", "options", "message"),
    [
        (3, {}, "it takes a Compose of Albumentations, but got a int"),
        (_OtherLibrary(), {}, "but got a _OtherLibrary: write gpupipe.from_torchvision"),
        (
            A.Compose([A.HorizontalFlip(), A.ElasticTransform()]),
            {"masks": ["mask"]},
            r"transforms\[1\] \(ElasticTransform\): it moves pixels, no step equals it, and masks",
        ),
        (
            A.Compose([A.GridDistortion()], bbox_params=A.BboxParams("coco")),
            {},
            r"transforms\[0\] \(GridDistortion\).*nobody knows where its function moves pixels",
        ),
        (
            A.Compose([A.Transpose()], bbox_params=A.BboxParams("coco", min_visibility=0.3)),
            {},
            "bbox_params: min_visibility is 0.3, and no step drops boxes by it: leave it out",
        ),
        (
            A.Compose([A.Transpose()], bbox_params=A.BboxParams("coco", min_width=2)),
            {},
            "min_width is 2 and min_height 0, and the step has one smallest side",
        ),
        (
            A.Compose([A.NoOp()], additional_targets={"depth": "image"}),
            {},
            "additional_targets: depth: name the fields of masks in from_albumentations",
        ),
        (
            A.Lambda(image=np.negative),
            {},
            "Lambda: a Lambda calls .* write the step 'python: {call",
        ),
        (
            A.Compose([A.OneOf([A.Lambda(image=np.negative, name="negative"), A.ISONoise()])]),
            {},
            "a Lambda calls a function of your code: write the step 'python: {call",
        ),
        (
            A.Compose([A.Normalize(), A.InvertImg()]),
            {},
            r"transforms\[1\] \(InvertImg\).*colours from 0 to 1, but gets normalized ones",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_converted(transform: Any, options: Any, message: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=message):
        gpupipe.from_albumentations(transform, **options)


def test_releases_that_may_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(A, "__version__", "2.1.0")
    with pytest.raises(
        gpupipe.ConfigError, match=r"2\.1\.0 is installed.*pip install albumentations=="
    ):
        gpupipe.from_albumentations(A.NoOp())
