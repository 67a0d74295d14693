from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
from torchvision.transforms import v2

from gpupipe.steps.random_photometric_distort import RandomPhotometricDistort
from helpers.color_differences import EXACT, compared, drawn, is_share, is_uniform, most


@pytest.mark.parametrize(("gray", "p"), [(False, 0.5), (False, 1), (True, 1)])
def test_levels_are_nearly_torchvisions(small_gallery: Path, gray: bool, p: float) -> None:
    """A level of difference is multiplied by the factors after it, up to 1.5."""
    found = compared(small_gallery, "random_photometric_distort", gray=gray, p=p)
    assert max(d.most for d in found) <= 4
    assert max(d.mean for d in found) < 0.4


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_photometric_distort", "float32", p=1) <= 10 * EXACT


def test_the_defaults_are_torchvisions() -> None:
    step = RandomPhotometricDistort()
    parameters = inspect.signature(v2.RandomPhotometricDistort).parameters
    assert {name: getattr(step, name) for name in parameters} == {
        name: parameter.default for name, parameter in parameters.items()
    }


def test_each_change_is_drawn_alone() -> None:
    p = drawn("random_photometric_distort", 60_000, p=0.3)
    for name in ("brightness", "saturation", "hue", "permutation"):
        assert is_share(p[f"{name}_runs"], 0.3), name
    assert is_share(p["contrast_first_runs"], 0.15)
    assert is_share(p["contrast_last_runs"], 0.15)
    assert (p["contrast_first_runs"] & p["contrast_last_runs"]).max() == 0
    assert is_share(p["brightness_runs"] & p["hue_runs"], 0.09)
    for name, low, high in (
        ("brightness", 0.875, 1.125),
        ("contrast", 0.5, 1.5),
        ("saturation", 0.5, 1.5),
        ("hue", -0.05, 0.05),
    ):
        assert is_uniform(p[name], low, high), name
    _, counts = np.unique(p["permutation"], axis=0, return_counts=True)
    assert len(counts) == 6
    assert np.abs(counts - 10_000).max() < 500


@pytest.mark.parametrize(
    "step",
    [
        {"brightness": 0.5},
        {"contrast": [1, 0.5]},
        {"saturation": [-1, 1]},
        {"hue": [-0.6, 0.1]},
        {"hue": 0.1},
        {"p": 2},
    ],
    ids=str,
)
def test_other_parameters_are_refused(step: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomPhotometricDistort.model_validate(step)
