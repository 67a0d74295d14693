from pathlib import Path

import numpy as np
import pytest
import torch

from gpupipe.pipeline.step import Spec
from gpupipe.steps.transpose import Transpose
from helpers.arrays import ENGINES
from helpers.pipeline_texts import mistakes
from helpers.reference import differences, emitted, load
from helpers.turned_annotations import check_turned


@pytest.mark.parametrize("engine", ENGINES)
def test_exact(small_gallery: Path, engine: str) -> None:
    found = differences(small_gallery, {"transpose": {"p": 0.5}}, engine=engine)
    assert max(d.most for d in found) == 0


def test_rows_become_columns(small_gallery: Path) -> None:
    turned = differences(small_gallery, {"transpose": {"p": 1}}, engine="cpu")
    plain = differences(small_gallery, {"transpose": {"p": 0}}, engine="cpu")
    assert all(
        torch.equal(a.image, b.image.transpose(1, 2)) for a, b in zip(turned, plain, strict=True)
    )
    assert any(d.image.shape[1] != d.image.shape[2] for d in plain)


def test_boxes_and_points_stay_on_their_pixels() -> None:
    assert check_turned(Transpose(p=0.5)) == {(7, 11), (11, 7)}


def test_the_size_that_follows() -> None:
    image = Spec.of_image(3).with_size((20, 30))
    assert Transpose(p=1).infer_spec(image).size == (30, 20)
    assert Transpose(p=0).infer_spec(image).size == (20, 30)
    half = Transpose().infer_spec(image)
    assert half.size is None
    assert half.at_least == (20, 20)
    square = image.with_size((20, 20))
    assert Transpose().infer_spec(square) == square


def test_probability() -> None:
    u = np.random.default_rng(0).random((20_000, 1))
    assert abs(Transpose(p=0.3).sample(u)["swaps"].mean() - 0.3) < 0.015


def test_lowering(small_gallery: Path) -> None:
    with load(small_gallery, {"transpose": {"p": 1}}) as loader:
        assert emitted(loader) == ["decoders.image", "transpose", "transpose"]


def test_sizes_that_differ_are_refused_in_a_batch(small_gallery: Path) -> None:
    assert mistakes("decode", "resize: {size: [20, 30]}", "transpose: {p: 2}") == [
        "3:18: transpose.p is 2, but should be at most 1"
    ]
