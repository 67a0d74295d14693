from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest
import torch

from gpupipe.pipeline.step import Spec
from gpupipe.steps.resize import Resize
from helpers.reference import Difference, differences


def inner(d: Difference) -> torch.Tensor:
    """The levels without the outermost 4 pixels: DALI repeats the edge under its filter,
    torchvision shortens the filter.
    """
    return d.levels[:, 4:-4, 4:-4]


@pytest.mark.parametrize(
    "parameters",
    [
        {"size": 128},
        {"size": 127},
        {"size": [224, 224]},
        {"size": [97, 301]},
        {"size": 700},
        {"size": 200, "max_size": 256},
    ],
    ids=str,
)
def test_antialiased_resize_is_torchvision_s_but_for_the_edge(
    gallery: Path, parameters: dict[str, Any]
) -> None:
    found = differences(gallery, {"resize": parameters})
    assert max(d.mean for d in found) < 0.3
    assert max(float(inner(d).max()) for d in found) <= 1
    assert max(abs(d.offset) for d in found) < 0.2


def test_bicubic_has_no_shift(gallery: Path) -> None:
    """torchvision rounds and clips between the two directions, DALI does not: at hard edges they
    differ by some levels.
    """
    found = differences(gallery, {"resize": {"size": 128, "interpolation": "bicubic"}})
    assert max(d.mean for d in found) < 0.3
    assert max(abs(d.offset) for d in found) < 0.2
    assert max(float((inner(d) > 1).double().mean()) for d in found) < 0.002


def test_bilinear_without_antialias_is_within_a_level(gallery: Path) -> None:
    assert (
        max(d.most for d in differences(gallery, {"resize": {"size": 128, "antialias": False}}))
        <= 1
    )


def test_nearest_takes_the_same_pixels(gallery: Path) -> None:
    """floor(x * scale) lands on the other pixel only where float32 and float64 disagree about a
    whole number.
    """
    found = differences(gallery, {"resize": {"size": 131, "interpolation": "nearest"}})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.01


def test_shape_is_known_where_the_input_s_is() -> None:
    known = Spec.of_image(3, 375, 500)
    assert Resize.model_validate({"size": 256}).infer_spec(known).size == (256, 341)
    assert Resize.model_validate({"size": [10, 20]}).infer_spec(Spec.of_image(None)).size == (
        10,
        20,
    )
    assert Resize.model_validate({"size": 256}).infer_spec(Spec.of_image(None)).at_least == (
        256,
        256,
    )
    assert Resize.model_validate({"size": 256, "max_size": 300}).infer_spec(known).size == (
        225,
        300,
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"size": [1, 2], "max_size": 3},
        {"size": 10, "max_size": 10},
        {"size": 9, "interpolation": "bicubic", "antialias": False},
    ],
)
def test_what_cannot_be_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        Resize.model_validate(parameters)
