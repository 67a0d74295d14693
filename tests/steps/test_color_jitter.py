import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
from torchvision.transforms import v2

from gpupipe.steps.color_jitter import ADJUSTMENTS, ColorJitter, RandomPhotometricDistort
from helpers.color_differences import EXACT, compared, drawn, is_share, is_uniform, most
from helpers.reference import emitted, load

ALL: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2}


@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_one_adjustment_is_within_a_level_of_torchvisions(small_gallery: Path, name: str) -> None:
    bounds = [-0.5, 0.5] if name == "hue" else [0.0, 2.0]
    assert most(small_gallery, "color_jitter", **{name: bounds}) <= 1


def test_a_gray_image_has_neither_saturation_nor_hue(small_gallery: Path) -> None:
    assert most(small_gallery, "color_jitter", gray=True, saturation=0.5, hue=0.5) == 0
    assert most(small_gallery, "color_jitter", gray=True, brightness=0.5) <= 1


def test_all_four_multiply_a_level_of_difference(small_gallery: Path) -> None:
    """A later factor of up to 1.4 multiplies it, and each rounds again."""
    found = compared(small_gallery, "color_jitter", **ALL)
    assert max(d.most for d in found) <= 4
    assert max(d.mean for d in found) < 0.4
    assert most(small_gallery, "color_jitter", "float32", **ALL) <= 10 * EXACT


def test_what_has_no_effect_costs_no_operator(small_gallery: Path) -> None:
    with load(
        small_gallery, {"color_jitter": {"brightness": 0, "contrast": [1, 1], "hue": 0}}
    ) as loader:
        assert "adjust_contrast" not in emitted(loader)
        plain = emitted(loader)
    with load(small_gallery) as loader:
        assert emitted(loader) == plain


def test_factors_and_orders_are_uniform() -> None:
    p = drawn("color_jitter", 60_000, brightness=0.4, contrast=[0.5, 2], saturation=3, hue=0.1)
    for name, low, high in (
        ("brightness", 0.6, 1.4),
        ("contrast", 0.5, 2.0),
        ("saturation", 0.0, 4.0),
        ("hue", -0.1, 0.1),
    ):
        assert is_uniform(p[name], low, high), name
    orders, counts = np.unique(p["order"], axis=0, return_counts=True)
    assert {tuple(order) for order in orders} == set(itertools.permutations(range(4)))
    assert ((counts - 2500) ** 2 / 2500).sum() < 49.7  # chi-square, 23 degrees, 1 in 1000


def test_the_order_does_not_depend_on_factors() -> None:
    p = drawn("color_jitter", **ALL)
    first = p["order"][:, 0] == 0
    assert abs(p["brightness"][first].mean() - p["brightness"].mean()) < 0.01


def test_two_adjustments_have_two_orders() -> None:
    p = drawn("color_jitter", contrast=0.1, hue=0.1)
    assert sorted(p) == ["contrast", "hue", "order"]
    orders, counts = np.unique(p["order"], axis=0, return_counts=True)
    assert orders.tolist() == [[0, 1], [1, 0]]
    assert abs(int(counts[0]) - 10_000) < 400


@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_short_forms_mean_what_they_mean_in_torchvision(name: str) -> None:
    values: list[Any] = [0, 0.3, 0.5, [0.1, 0.4], [0, 0]]
    for value in values:
        step = ColorJitter.model_validate({name: value})
        expected = getattr(v2.ColorJitter(**{name: value}), name)
        assert step._ranges.get(name) == expected, value


@pytest.mark.parametrize(
    "step",
    [
        {"brightness": -0.1},
        {"contrast": [-0.1, 1]},
        {"saturation": [1, 0.5]},
        {"hue": 0.6},
        {"hue": [-0.6, 0]},
        {"hue": -0.1},
        {"brightness": [1]},
        {"brightness": [1, 2, 3]},
        {"brightness": True},
        {"brightness": "much"},
    ],
    ids=str,
)
def test_what_torchvision_refuses_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        ColorJitter.model_validate(step)


def test_numbers_above_1_are_brighter_than_twice() -> None:
    assert ColorJitter.model_validate({"brightness": 3}).brightness == (0.0, 4.0)


@pytest.mark.parametrize(("gray", "p"), [(False, 0.5), (False, 1), (True, 1)])
def test_levels_are_nearly_torchvisions(small_gallery: Path, gray: bool, p: float) -> None:
    """A level of difference is multiplied by the factors after it, up to 1.5."""
    found = compared(small_gallery, "random_photometric_distort", gray=gray, p=p)
    assert max(d.most for d in found) <= 4
    assert max(d.mean for d in found) < 0.4


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_photometric_distort", "float32", p=1) <= 10 * EXACT


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
