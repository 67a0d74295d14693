"""gpupipe.from_torchvision on whole transforms: containers, functions, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import gpupipe
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema import yaml_files
from helpers import user_functions, user_transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLIP = v2.RandomHorizontalFlip()
TURN = v2.RandomRotation(10)


def parse(text: str) -> Pipeline:
    return build_pipeline("p", yaml_files.parse(text, "p.yaml"))


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
    assert len(yaml.safe_load(steps.to_yaml())) == len(steps)
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
