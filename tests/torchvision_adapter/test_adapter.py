"""gpupipe.from_torchvision on whole transforms: containers, presets, and what it refuses."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

import gpupipe
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.build import build_pipeline, find_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema import yaml_files
from gpupipe.schema.document import Document
from helpers import user_functions, user_transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLIP = v2.RandomHorizontalFlip()
TURN = v2.RandomRotation(10)


def make_train_preset(
    module: Any,
    *,
    crop_size: int,
    interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
    auto_augment_policy: str | None = None,
    ra_magnitude: int = 9,
    augmix_severity: int = 3,
    random_erase_prob: float = 0.0,
    backend: str = "pil",
) -> Any:
    """torchvision's ClassificationPresetTrain (references/classification/presets.py)."""
    steps = [module.PILToTensor()] if backend == "tensor" else []
    steps += [module.RandomResizedCrop(crop_size, interpolation=interpolation, antialias=True)]
    steps += [module.RandomHorizontalFlip(0.5)]
    if auto_augment_policy == "ra":
        steps += [module.RandAugment(interpolation=interpolation, magnitude=ra_magnitude)]
    elif auto_augment_policy == "ta_wide":
        steps += [module.TrivialAugmentWide(interpolation=interpolation)]
    elif auto_augment_policy == "augmix":
        steps += [module.AugMix(interpolation=interpolation, severity=augmix_severity)]
    elif auto_augment_policy is not None:
        policy = module.AutoAugmentPolicy(auto_augment_policy)
        steps += [module.AutoAugment(policy=policy, interpolation=interpolation)]
    if backend == "pil":
        steps += [module.PILToTensor()]
    if module is v2:
        steps += [v2.ToDtype(torch.float, scale=True)]
    else:
        steps += [v1.ConvertImageDtype(torch.float)]
    steps += [module.Normalize(mean=MEAN, std=STD)]
    if random_erase_prob > 0:
        steps += [module.RandomErasing(p=random_erase_prob)]
    if module is v2:
        steps += [v2.ToPureTensor()]
    return module.Compose(steps)


def make_eval_preset(
    module: Any,
    *,
    crop_size: int,
    resize_size: int = 256,
    interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
) -> Any:
    """torchvision's ClassificationPresetEval (references/classification/presets.py)."""
    convert = v2.ToDtype(torch.float, scale=True)
    return module.Compose(
        [
            module.Resize(resize_size, interpolation=interpolation, antialias=True),
            module.CenterCrop(crop_size),
            module.PILToTensor(),
            convert if module is v2 else v1.ConvertImageDtype(torch.float),
            module.Normalize(mean=MEAN, std=STD),
        ]
    )


AUGMIX = """
- decode
- random_resized_crop: {size: 176, interpolation: bicubic}
- random_horizontal_flip
- aug_mix: {severity: 5, interpolation: bilinear}
- to_dtype: {dtype: float32, scale: true}
- normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
"""
BICUBIC = {"interpolation": v2.InterpolationMode.BICUBIC}
PRESETS = {
    "imagenet_train": lambda m: make_train_preset(m, crop_size=224),
    "imagenet_eval": lambda m: make_eval_preset(m, crop_size=224),
    "randaugment": lambda m: make_train_preset(m, crop_size=224, auto_augment_policy="ra"),
    "autoaugment": lambda m: make_train_preset(m, crop_size=224, auto_augment_policy="imagenet"),
    "torchvision_resnet50_v2_train": lambda m: make_train_preset(
        m,
        crop_size=176,
        auto_augment_policy="ta_wide",
        random_erase_prob=0.1,
        backend="tensor",
    ),
    "torchvision_resnet50_v2_eval": lambda m: make_eval_preset(m, crop_size=224, resize_size=232),
}
"""The presets of torchvision's references, by the shipped pipeline that is written by hand."""


def parse(text: str) -> Pipeline:
    return build_pipeline("p", yaml_files.parse(text, "p.yaml"))


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_of_torchvision_is_the_shipped_pipeline(name: str, module: Any) -> None:
    found = parse(str(gpupipe.from_torchvision(PRESETS[name](module))))
    assert found.fingerprint == build_pipeline(name, find_pipeline(name, None)).fingerprint


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        (ResNet50_Weights.IMAGENET1K_V1, "imagenet_eval"),
        (ResNet50_Weights.IMAGENET1K_V2, "torchvision_resnet50_v2_eval"),
    ],
    ids=str,
)
def test_the_preset_of_pretrained_weights(weights: ResNet50_Weights, name: str) -> None:
    found = parse(str(gpupipe.from_torchvision(weights.transforms())))
    assert found.fingerprint == build_pipeline(name, find_pipeline(name, None)).fingerprint


def test_the_settings_of_a_preset_of_pretrained_weights() -> None:
    preset = ResNet50_Weights.IMAGENET1K_V1.transforms(
        antialias=False, resize_size=40, crop_size=30
    )
    assert gpupipe.from_torchvision(preset)[1:3] == [
        {"resize": {"size": 40, "antialias": False}},
        {"center_crop": {"size": [30, 30]}},
    ]


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_the_preset_with_augmix(module: Any) -> None:
    preset = make_train_preset(
        module, crop_size=176, auto_augment_policy="augmix", augmix_severity=5
    )
    preset.transforms[0] = module.RandomResizedCrop(176, **BICUBIC)
    assert parse(str(gpupipe.from_torchvision(preset))).fingerprint == parse(AUGMIX).fingerprint


def test_load_takes_the_steps_and_their_yaml(faces: Path, tmp_path: Path) -> None:
    preset = make_train_preset(v2, crop_size=64, auto_augment_policy="ra", random_erase_prob=0.5)
    steps = gpupipe.from_torchvision(preset)
    file = tmp_path / "mine.yaml"
    file.write_text(steps.to_yaml())
    data = {"source": "folder", "root": faces}
    batches = []
    for pipeline in (steps, str(file)):
        with gpupipe.load(
            {"data": data, "pipeline": pipeline}, batch_size=4, engine="dataloader", workers=0
        ) as loader:
            batches.append(next(iter(loader))["image"])
    assert batches[0].shape == (4, 3, 64, 64)
    assert batches[0].dtype == torch.float32
    assert torch.equal(*batches)


def test_steps_can_be_changed_like_any_list() -> None:
    steps = gpupipe.from_torchvision(FLIP)
    steps.insert(1, {"resize": {"size": 20}})
    assert str(steps) == "- decode\n- resize: {size: 20}\n- random_horizontal_flip\n"
    assert steps == ["decode", {"resize": {"size": 20}}, "random_horizontal_flip"]


def test_gray_images() -> None:
    mnist = v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))])
    steps = gpupipe.from_torchvision(mnist, mode="gray")
    assert steps[0] == {"decode": {"mode": "gray"}}
    assert parse(str(steps)).output_spec.channels == 1
    with pytest.raises(gpupipe.ConfigError, match=r"^decode: decode.mode is 'L', but should be"):
        gpupipe.from_torchvision(mnist, mode="L")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_containers_are_nested(module: Any) -> None:
    inner = module.Compose([FLIP, module.RandomGrayscale(0.3)])
    steps = gpupipe.from_torchvision(
        module.Compose(
            [
                module.RandomApply([inner, TURN], p=0.8),
                module.RandomChoice([inner, module.PILToTensor(), TURN], p=[1, 1, 2]),
                module.RandomChoice([FLIP, TURN]),
                module.RandomOrder([FLIP, module.RandomApply(nn.ModuleList([TURN]))]),
                nn.Sequential(FLIP, nn.Sequential(TURN)),
                module.RandomApply([module.PILToTensor()]),
            ]
        )
    )
    turn = {"random_rotation": {"degrees": [-10.0, 10.0]}}
    flip, gray = "random_horizontal_flip", {"random_grayscale": {"p": 0.3}}
    together = {"random_apply": {"p": 1.0, "transforms": [flip, gray]}}
    weights = [0.25, 0.25, 0.5] if module is v2 else [1, 1, 2]
    assert steps[1:] == [
        {"random_apply": {"p": 0.8, "transforms": [flip, gray, turn]}},
        {"random_choice": {"p": weights, "transforms": [together, "identity", turn]}},
        {"random_choice": {"transforms": [flip, turn]}},
        {
            "random_order": {
                "transforms": [flip, {"random_apply": {"p": 0.5, "transforms": [turn]}}]
            }
        },
        flip,
        turn,
    ]
    assert yaml.safe_load(str(steps)) == steps
    assert parse(str(steps)).fingerprint == parse(yaml.safe_dump(list(steps))).fingerprint


def test_identity_and_a_size_of_none() -> None:
    steps = gpupipe.from_torchvision(
        v2.Compose([torch.nn.Identity(), v2.Resize(size=None, max_size=32), v2.ToImage()])
    )
    assert list(steps) == ["decode", "identity", {"resize": {"size": None, "max_size": 32}}]


def test_all_that_has_no_counterpart_is_named_with_what_to_write() -> None:
    missing = v2.Compose(
        [
            v2.CutMix(alpha=0.3, num_classes=3),
            v2.RandomChoice([v2.RandomApply([v2.ToPILImage()]), v2.Resize(3, 1)]),
            v2.ToPILImage(),
            v2.Pad(1, fill={tv_tensors.Mask: 255}),
            v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64}),
            v2.UniformTemporalSubsample(2),
            v2.RandomPosterize(12),
        ]
    )
    with pytest.raises(gpupipe.ConfigError) as raised:
        gpupipe.from_torchvision(missing)
    found = {p.where: p.what for p in raised.value.problems}
    parts = {
        "transforms[0] (CutMix)": "'batch: [cutmix: {alpha: 0.3}]'",
        "transforms[1].transforms[0].transforms[0] (ToPILImage)": "leave it out",
        "transforms[1].transforms[1] (Resize)": "'lanczos', but should be 'nearest', 'bilinear'",
        "transforms[2] (ToPILImage)": "leave it out",
        "transforms[3] (Pad)": "pad.fill is {image: empty, mask: 255}, but should be one number",
        "transforms[4] (ToDtype)": "'to_dtype: {dtype: int64, on: mask}'",
        "transforms[5] (UniformTemporalSubsample)": "choose the frames",
        "transforms[6] (RandomPosterize)": "random_posterize.bits is 12",
    }
    assert found.keys() == parts.keys()
    for place, part in parts.items():
        assert part in found[place]


def test_functions_and_classes_of_ones_own_are_called(faces: Path) -> None:
    halve = v2.Lambda(user_functions.halve)
    mine = v2.Compose(
        [
            v2.Resize((40, 40)),
            halve,
            lambda image: 1 - image,
            v2.RandomApply([user_transforms.TwoSided(8)], p=1),
            v2.CenterCrop(8),
        ]
    )
    with pytest.warns(UserWarning, match="a step 'python' calls") as warned:
        steps = gpupipe.from_torchvision(mine)
    for place in (
        "transforms[1] (Lambda)",
        "transforms[2] (<lambda>)",
        "transforms[3].transforms[0] (TwoSided)",
    ):
        assert place in str(warned[0].message)
    nested = steps[4]["random_apply"]["transforms"]
    assert nested == [{"python": {"call": mine.transforms[3].transforms[0], "workers": 1}}]
    text = steps.to_yaml()
    assert "python: {call: 'helpers.user_functions:halve'}" in text
    assert text.count("# no file can have") == 2
    assert len(yaml.safe_load(text)) == len(steps)
    with gpupipe.load(
        {"data": {"source": "folder", "root": str(faces)}, "pipeline": steps},
        device="cpu",
        batch_size=8,
    ) as loader:
        batch = next(iter(loader))["image"]
    assert batch.shape == (8, 1, 8, 8)
    assert 0 <= batch.min() < batch.max() <= 1


def test_an_order_that_is_refused_is_blamed_on_the_transform() -> None:
    normalize = v2.Normalize(MEAN, STD)
    wrong = v2.Compose([v2.ToImage(), FLIP, v2.RandomOrder([TURN, normalize])])
    with pytest.raises(gpupipe.ConfigError) as raised:
        gpupipe.from_torchvision(wrong)
    (problem,) = raised.value.problems
    assert problem.where == "transforms[2].transforms[1] (Normalize)"
    assert "write 'to_dtype: {dtype: float32, scale: true}' before it" in problem.what
    with pytest.raises(gpupipe.ConfigError, match=r"^Normalize: normalize cannot"):
        gpupipe.from_torchvision(normalize)


def make_detection_preset(augmentation: str) -> Any:
    """torchvision's DetectionPresetTrain of v2 (references/detection/presets.py)."""
    mean = (123.0, 117.0, 104.0)
    flip = v2.RandomHorizontalFlip(p=0.5)
    sizes = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    zoom = v2.RandomZoomOut(fill=defaultdict(lambda: mean, {tv_tensors.Mask: 0}))
    steps = {
        "hflip": [flip],
        "multiscale": [v2.RandomShortestSize(min_size=sizes, max_size=1333), flip],
        "ssd": [v2.RandomPhotometricDistort(), zoom, v2.RandomIoUCrop(), flip],
        "ssdlite": [v2.RandomIoUCrop(), flip],
    }
    return v2.Compose(
        [
            *steps[augmentation],
            v2.ToImage(),
            v2.ToDtype(torch.float, scale=True),
            v2.ConvertBoundingBoxFormat(tv_tensors.BoundingBoxFormat.XYXY),
            v2.SanitizeBoundingBoxes(),
            v2.ToPureTensor(),
        ]
    )


@pytest.mark.parametrize(
    ("augmentation", "name"),
    [
        ("hflip", "keypoint_rcnn"),
        ("multiscale", "multiscale"),
        ("ssd", "ssd"),
        ("ssdlite", "ssdlite"),
    ],
)
def test_presets_of_detection_are_the_shipped_recipes(augmentation: str, name: str) -> None:
    """But for the resize that ssd and ssdlite have at their end, and the format that boxes have."""
    steps = gpupipe.from_torchvision(make_detection_preset(augmentation))
    assert {"convert_bounding_box_format": {"format": "XYXY"}} in steps
    document = Document("p", [s for s in steps if "convert_bounding_box_format" not in s])
    specs = {"boxes": Spec.of_boxes()}
    found = build_pipeline("p", document, annotations=specs)
    shipped = build_pipeline(name, find_pipeline(name, None), annotations=specs)
    expected = [e for e in shipped.entries if not e.name.startswith("resize")]
    assert [(e.key, e.dump()) for e in found.entries] == [(e.key, e.dump()) for e in expected]
