from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torchvision.transforms import v2

import gpupipe
from gpupipe import config
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.auto_augment import AutoAugment
from helpers import augment_draws
from helpers.reference import differences

POLICIES = ["imagenet", "cifar10", "svhn"]


@pytest.mark.parametrize("policy", POLICIES)
def test_draws_have_torchvisions_distribution(policy: str) -> None:
    drawn = augment_draws.sampled(
        AutoAugment.model_validate({"policy": policy}), augment_draws.RECORDED
    )
    ours = map(augment_draws.names_and_magnitudes, drawn["op"], drawn["value"])
    theirs = augment_draws.recorded(v2.AutoAugment, policy=v2.AutoAugmentPolicy(policy))
    assert augment_draws.agree(augment_draws.rounded(ours), augment_draws.rounded(theirs))


@pytest.mark.parametrize("policy", POLICIES)
def test_dali_agrees_with_torch(small_gallery: Path, policy: str) -> None:
    """A level of the first operation becomes up to 64 where the second one posterizes, and one of
    a histogram moves all levels that equalize makes: the mean is what stays small.
    """
    found = differences(small_gallery, {"auto_augment": {"policy": policy}}, epochs=range(3))
    assert max(d.mean for d in found) < 1


def test_the_policy_is_imagenets_by_default() -> None:
    assert AutoAugment().policy == "imagenet"
    assert AutoAugment().fill is None
    assert AutoAugment().interpolation == "nearest"


def test_an_edge_of_the_draws() -> None:
    """The least and the greatest draws are pairs and signs that exist."""
    step = AutoAugment()
    drawn = step.sample(np.array([[0.0] * 5, [np.nextafter(1.0, 0.0)] * 5]))
    assert drawn["op"][0].all()
    assert not drawn["op"][1].any()


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"'imagnet'.*'imagenet', 'cifar10' or 'svhn'"):
        config.read(
            {"data": _DATA, "pipeline": ["decode", {"auto_augment": {"policy": "imagnet"}}]}
        )


def test_it_stands_before_normalize() -> None:
    steps = [
        "decode",
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": 0.5, "std": 0.5}},
        "auto_augment",
    ]
    with pytest.raises(gpupipe.ConfigError, match=r"pipeline\.3: auto_augment .*before 'normal"):
        config.read({"data": _DATA, "pipeline": steps})


@pytest.mark.parametrize("channels", [2, 4])
def test_it_takes_gray_and_rgb(channels: int) -> None:
    for taken in (1, 3):
        given = Spec.of_image(taken)
        assert AutoAugment().infer_spec(given) == given
    with pytest.raises(StepIncompatibleError, match=f"1 or 3 channels.*{channels}"):
        AutoAugment().infer_spec(Spec.of_image(channels))


def test_fill_has_a_number_per_channel() -> None:
    step = AutoAugment.model_validate({"fill": [1, 2]})
    with pytest.raises(StepIncompatibleError, match="fill has 2 numbers"):
        step.infer_spec(Spec.of_image(3))


_DATA = {"source": "folder", "root": "/nowhere"}
