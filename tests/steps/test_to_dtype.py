from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.reference import differences, emitted, load


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [True, False])
def test_from_levels_to_floats(small_gallery: Path, dtype: str, scale: bool) -> None:
    found = differences(small_gallery, {"to_dtype": {"dtype": dtype, "scale": scale}})
    assert found[0].image.dtype == getattr(torch, dtype)
    step = 2**-11 if dtype == "float16" else 2**-23
    assert max(d.most for d in found) <= step * (1 if scale else 255)


def test_there_and_back(small_gallery: Path) -> None:
    found = differences(
        small_gallery,
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"to_dtype": {"dtype": "uint8", "scale": True}},
    )
    assert found[0].image.dtype == torch.uint8
    assert max(d.most for d in found) == 0


def test_there_and_back_without_scaling_truncates(small_gallery: Path) -> None:
    steps = (
        {"to_dtype": {"dtype": "float32"}},
        {"normalize": {"mean": [0.25], "std": [1.1]}},
        {"to_dtype": {"dtype": "uint8"}},
    )
    found = differences(small_gallery, *steps)
    assert max(d.most for d in found) <= 1
    assert max(d.mean for d in found) < 0.01


def test_nothing_is_done_twice(small_gallery: Path) -> None:
    steps = (
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    )
    assert max(d.most for d in differences(small_gallery, *steps)) <= 2**-23
    with load(small_gallery, *steps) as loader:
        assert emitted(loader) == ["decoders.image", "crop_mirror_normalize"]
