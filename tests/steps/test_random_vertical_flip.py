from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpupipe.steps.random_vertical_flip import RandomVerticalFlip
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_exact(small_gallery: Path, p: float) -> None:
    assert max(d.most for d in differences(small_gallery, {"random_vertical_flip": {"p": p}})) == 0


def test_two_flips_cancel(small_gallery: Path) -> None:
    always = {"random_vertical_flip": {"p": 1}}
    twice = differences(small_gallery, always, always)
    once = differences(small_gallery, always)
    assert max(d.most for d in twice) == 0
    assert all((a.image.flip(-2) == b.image).all() for a, b in zip(twice, once, strict=True))


def test_probability() -> None:
    flips = RandomVerticalFlip(p=0.3).sample(np.random.default_rng(0).random((20_000, 1)))["flip"]
    assert abs(flips.mean() - 0.3) < 0.015


def test_lowering(small_gallery: Path) -> None:
    with load(small_gallery, "random_vertical_flip") as loader:
        assert emitted(loader) == ["decoders.image", "flip", "transpose"]
