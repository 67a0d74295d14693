from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.steps.random_affine import RandomAffine
from helpers.reference import Difference, differences, emitted, load


def inside(
    d: Difference, step: RandomAffine, key: str, name: str, seed: int = 0, epoch: int = 0
) -> torch.Tensor:
    """Where no neighbour that is blended lies outside the image: where an all-white image stays
    white, less two pixels.
    """
    from gpupipe.sampling import draws

    p = {
        n: v[0]
        for n, v in step.sample(
            draws.uniform(seed, epoch, np.array([d.id]), draws.stream(key), step.num_uniforms)
        ).items()
    }
    white = step.torch(torch.full((3, *_input(name)), 255, dtype=torch.uint8), p)
    shrunk = -torch.nn.functional.max_pool2d(-(white[:1] == 255).float()[None], 5, 1, 2)[0]
    return shrunk[0] > 0


def _input(name: str) -> tuple[int, int]:
    width, height = name.rsplit("_", maxsplit=1)[-1].removesuffix(".png").split("x")
    return int(height), int(width)


@pytest.mark.parametrize(
    "parameters",
    [
        {"degrees": 5, "translate": [0.1, 0.1], "scale": [0.5, 2.0]},
        {"degrees": [30, 80], "shear": 10},
        {"degrees": 0, "shear": [-10, 10, -20, 20], "fill": [10, 200, 30]},
        {"degrees": 45, "center": [20.5, 33]},
        {"degrees": 0, "translate": [0.3, 0.2]},
    ],
    ids=str,
)
def test_bilinear_is_within_a_level_inside_the_border(
    small_gallery: Path, parameters: dict[str, Any]
) -> None:
    parameters = {**parameters, "interpolation": "bilinear"}
    step = RandomAffine.model_validate(parameters)
    with load(small_gallery) as loader:
        names = {i: loader.index.location(i) for i in range(len(loader.index))}
    covered = 0.0
    for d in differences(small_gallery, {"random_affine": parameters}):
        within = inside(d, step, "random_affine", names[d.id])
        covered += float(within.double().mean())
        assert not within.any() or float(d.levels[:, within].max()) <= 1
        assert d.mean < 0.5
    assert covered > 3  # of 10 images: the check must have looked at pixels


def test_nearest_takes_the_same_pixels(small_gallery: Path) -> None:
    found = differences(
        small_gallery,
        {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "scale": [0.5, 2.0]}},
    )
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.001


def test_parameters_lie_in_their_ranges() -> None:
    step = RandomAffine.model_validate(
        {"degrees": [-5, 15], "translate": [0.1, 0.2], "scale": [0.5, 2.0], "shear": [1, 2, 3, 4]}
    )
    p = step.sample(np.random.default_rng(0).random((5000, step.num_uniforms)))
    for name, low, high in [("angle", -5, 15), ("scale", 0.5, 2.0)]:
        assert low <= p[name].min() < low + 0.05 * (high - low)
        assert high >= p[name].max() > high - 0.05 * (high - low)
    assert (np.abs(p["translate"]).max(0) <= [0.1, 0.2]).all()
    assert (np.abs(p["translate"]).max(0) > [0.099, 0.198]).all()
    assert (p["shear"] >= [1, 3]).all()
    assert (p["shear"] <= [2, 4]).all()


def test_short_forms_mean_what_they_mean_in_torchvision() -> None:
    step = RandomAffine.model_validate({"degrees": 5, "shear": 7})
    assert (step.degrees, step.shear) == ((-5, 5), (-7, 7, 0, 0))
    assert RandomAffine.model_validate({"degrees": 0, "shear": [1, 2]}).shear == (1, 2, 0, 0)
    assert (step.interpolation, step.fill, step.translate, step.scale) == (
        "nearest",
        (0.0,),
        None,
        None,
    )


def test_on_the_cpu_it_is_a_perspective_warp(small_gallery: Path) -> None:
    with load(small_gallery, {"random_affine": {"degrees": 5}}) as loader:
        assert emitted(loader) == ["decoders.image", "experimental.warp_perspective", "transpose"]
