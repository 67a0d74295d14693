from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest
import torch

import gpupipe
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import SampleIncompatibleError, StepIncompatibleError
from gpupipe.steps.gaussian_blur import GaussianBlur
from helpers.color_differences import EXACT, drawn, is_uniform, most
from helpers.reference import load


@pytest.mark.parametrize(
    ("step", "gray"),
    [({"kernel_size": [3, 9], "sigma": 2}, True), ({"kernel_size": 23, "sigma": [1, 9]}, False)],
    ids=str,
)
def test_levels_are_within_one_of_torchvisions(
    small_gallery: Path, step: dict[str, Any], gray: bool
) -> None:
    assert most(small_gallery, "gaussian_blur", gray=gray, **step) <= 1


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "gaussian_blur", "float32", kernel_size=[7, 3]) <= EXACT


def test_sigma_is_drawn_from_its_range() -> None:
    assert is_uniform(drawn("gaussian_blur", kernel_size=3)["sigma"], 0.1, 2.0)
    assert is_uniform(drawn("gaussian_blur", kernel_size=3, sigma=[1, 4])["sigma"], 1.0, 4.0)
    assert set(drawn("gaussian_blur", 9, kernel_size=3, sigma=1.5)["sigma"]) == {1.5}


def test_short_forms_mean_what_they_mean_in_torchvision() -> None:
    assert GaussianBlur.model_validate({"kernel_size": 5}).kernel_size == (5, 5)
    assert GaussianBlur.model_validate({"kernel_size": [5]}).kernel_size == (5, 5)
    assert GaussianBlur.model_validate({"kernel_size": [5, 3]}).kernel_size == (5, 3)
    assert GaussianBlur.model_validate({"kernel_size": 5, "sigma": 2}).sigma == (2.0, 2.0)


@pytest.mark.parametrize(
    "step",
    [
        {"kernel_size": 4},
        {"kernel_size": [3, 4]},
        {"kernel_size": 0},
        {"kernel_size": -3},
        {"kernel_size": [3, 3, 3]},
        {"kernel_size": True},
        {"kernel_size": 3, "sigma": 0},
        {"kernel_size": 3, "sigma": [2, 1]},
        {"kernel_size": 3, "sigma": [0.1, 1, 2]},
        {},
    ],
    ids=str,
)
def test_other_parameters_are_refused(step: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        GaussianBlur.model_validate(step)


def test_an_image_smaller_than_the_border_is_refused() -> None:
    step = GaussianBlur.model_validate({"kernel_size": [9, 3]})
    spec = Spec.of_image(3, 2, 5)
    assert step.infer_spec(spec) == spec
    with pytest.raises(
        StepIncompatibleError, match=r"needs at least 2x5 pixels, .* has 2x4: write a"
    ):
        step.infer_spec(Spec.of_image(3, 2, 4))
    with pytest.raises(SampleIncompatibleError, match=r"needs at least 2x5 pixels, .* has 2x4"):
        step.torch(torch.zeros(3, 2, 4), {"sigma": 1.0})


def test_a_sample_smaller_than_the_border_is_named(small_gallery: Path) -> None:
    blur = {"gaussian_blur": {"kernel_size": [999, 3]}}
    with (
        load(small_gallery, blur) as loader,
        pytest.raises(gpupipe.SampleError, match="at least 2x500"),
    ):
        list(loader)
