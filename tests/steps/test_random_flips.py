from pathlib import Path

import numpy as np
import pytest

from gpupipe.pipeline.step_registry import STEPS
from helpers.reference import differences, emitted, load

AXES = {"random_horizontal_flip": -1, "random_vertical_flip": -2}


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_exact(small_gallery: Path, p: float, name: str) -> None:
    assert max(d.most for d in differences(small_gallery, {name: {"p": p}})) == 0


@pytest.mark.parametrize(("name", "axis"), AXES.items())
def test_two_flips_cancel(small_gallery: Path, name: str, axis: int) -> None:
    always = {name: {"p": 1}}
    twice = differences(small_gallery, always, always)
    once = differences(small_gallery, always)
    assert max(d.most for d in twice) == 0
    assert all((a.image.flip(axis) == b.image).all() for a, b in zip(twice, once, strict=True))


@pytest.mark.parametrize("name", AXES)
def test_probability(name: str) -> None:
    step = STEPS.find(name).model_validate({"p": 0.3})
    flips = step.sample(np.random.default_rng(0).random((20_000, 1)))["flip"]
    assert abs(flips.mean() - 0.3) < 0.015


def test_lowering(small_gallery: Path) -> None:
    with load(small_gallery, "random_horizontal_flip") as loader:
        assert emitted(loader) == ["decoders.image", "crop_mirror_normalize"]
    with load(small_gallery, "random_vertical_flip") as loader:
        assert emitted(loader) == ["decoders.image", "flip", "transpose"]
