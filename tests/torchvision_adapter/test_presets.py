"""gpupipe.from_torchvision on the presets of torchvision: they are the shipped pipelines."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
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

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
