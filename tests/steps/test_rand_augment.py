from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchvision.transforms import InterpolationMode, v2

import gpupipe
from gpupipe import config
from gpupipe.steps.rand_augment import RandAugment
from helpers import augment_draws
from helpers.color_differences import as_gray
from helpers.reference import differences


@pytest.mark.parametrize(
    "options", [{}, {"num_ops": 1, "magnitude": 0, "num_magnitude_bins": 2}, {"magnitude": 30}]
)
def test_draws_have_torchvisions_distribution(options: dict[str, int]) -> None:
    drawn = augment_draws.sampled(RandAugment.model_validate(options), augment_draws.RECORDED)
    ours = map(augment_draws.names_and_magnitudes, drawn["op"], drawn["value"])
    theirs = augment_draws.recorded(v2.RandAugment, **options)
    assert augment_draws.agree(augment_draws.rounded(ours), augment_draws.rounded(theirs))


def test_another_magnitude_has_another_distribution() -> None:
    """So the test above can fail."""
    first, second = (
        augment_draws.sampled(RandAugment(magnitude=magnitude), augment_draws.RECORDED)
        for magnitude in (9, 10)
    )
    both = [map(augment_draws.names_and_magnitudes, d["op"], d["value"]) for d in (first, second)]
    assert not augment_draws.agree(*map(augment_draws.rounded, both))


@pytest.mark.parametrize("options", [{}, {"interpolation": "bilinear", "fill": [124, 116, 104]}])
def test_dali_agrees_with_torch(small_gallery: Path, options: dict[str, Any]) -> None:
    """In the mean: see test_auto_augment.py."""
    found = differences(small_gallery, {"rand_augment": options}, epochs=range(3))
    assert max(d.mean for d in found) < 1


def test_of_gray_images(small_gallery: Path) -> None:
    found = differences(
        as_gray(small_gallery), {"rand_augment": {"num_ops": 4}}, decode={"mode": "gray"}
    )
    assert found[0].image.shape[0] == 1
    assert max(d.mean for d in found) < 1


def test_no_operation_changes_nothing(small_gallery: Path) -> None:
    found = differences(small_gallery, {"rand_augment": {"num_ops": 0}})
    assert not any(d.most for d in found)
    assert RandAugment(num_ops=0).num_uniforms == 0


def test_defaults_are_torchvisions() -> None:
    ours, theirs = RandAugment(), v2.RandAugment()
    for name in ("num_ops", "magnitude", "num_magnitude_bins", "fill"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert InterpolationMode(ours.interpolation) == InterpolationMode(theirs.interpolation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"magnitude": 31}, "magnitude is 31, .* at most 30"),
        ({"magnitude": 5, "num_magnitude_bins": 5}, "magnitude is 5, .* at most 4"),
        ({"magnitude": -1}, "magnitude is -1, .* at least 0"),
        ({"magnitude": 8.5}, "magnitude is 8.5, .* whole number"),
        ({"num_magnitude_bins": 1}, "num_magnitude_bins is 1, .* at least 2"),
        ({"num_ops": -1}, "num_ops is -1, .* at least 0"),
        ({"interpolation": "bicubic"}, "interpolation is 'bicubic', .*'bilinear'"),
        ({"magnitud": 3}, "unknown key; did you mean 'magnitude'"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    data = {"source": "folder", "root": "/nowhere"}
    with pytest.raises(gpupipe.ConfigError, match=message):
        config.read({"data": data, "pipeline": ["decode", {"rand_augment": options}]})
