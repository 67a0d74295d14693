from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_rotation import RandomRotation
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize(
    "parameters",
    [{"degrees": 30}, {"degrees": [100, 170], "fill": 99}, {"degrees": 20, "center": [10, 200]}],
    ids=str,
)
def test_bilinear(gallery: Path, parameters: dict[str, object]) -> None:
    """Away from the image's own edge (where each blends with the fill in its way) no pixel is more
    than a level off.
    """
    for d in differences(gallery, {"random_rotation": {**parameters, "interpolation": "bilinear"}}):
        assert float((d.levels > 1).double().mean()) < 0.012
        assert d.mean < 0.4


def test_nearest_takes_the_same_pixels(gallery: Path) -> None:
    found = differences(gallery, {"random_rotation": {"degrees": 30}})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.001


@pytest.mark.parametrize("degrees", [20, [90, 90], [180, 180], [0, 0], [45, 50]], ids=str)
def test_expand_has_torchvision_s_size_and_pixels(gallery: Path, degrees: object) -> None:
    for d in differences(
        gallery,
        {"random_rotation": {"degrees": degrees, "expand": True, "interpolation": "bilinear"}},
    ):
        assert float((d.levels > 1).double().mean()) < 0.02


def test_angles() -> None:
    angles = RandomRotation.model_validate({"degrees": [10, 20]}).sample(
        np.random.default_rng(0).random((1000, 1))
    )["angle"]
    assert 10 <= angles.min() < 10.1
    assert 19.9 < angles.max() <= 20


def test_expand_makes_the_size_unknown() -> None:
    known = Spec.of_image(3, 10, 20)
    assert RandomRotation.model_validate({"degrees": 5}).infer_spec(known).size == (10, 20)
    assert (
        RandomRotation.model_validate({"degrees": 5, "expand": True}).infer_spec(known).size is None
    )


def test_on_the_cpu_it_is_a_perspective_warp(gallery: Path) -> None:
    with load(gallery, {"random_rotation": {"degrees": 5}}) as loader:
        assert emitted(loader) == ["decoders.image", "experimental.warp_perspective", "transpose"]
