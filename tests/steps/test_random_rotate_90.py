from pathlib import Path

import numpy as np
import pytest
import torch

from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_rotate_90 import RandomRotate90
from helpers.arrays import ENGINES
from helpers.reference import differences
from helpers.turned_annotations import check_turned


@pytest.mark.parametrize("engine", ENGINES)
def test_exact(small_gallery: Path, engine: str) -> None:
    found = differences(small_gallery, {"random_rotate_90": {"p": 1}}, engine=engine)
    assert max(d.most for d in found) == 0


def test_quarter_turns_are_those_of_torch() -> None:
    image = torch.arange(2 * 5 * 7).reshape(2, 5, 7)
    for turns in range(4):
        turned = RandomRotate90().torch(image, {"turns": np.int32(turns)})
        assert torch.equal(turned, torch.rot90(image, turns, (1, 2)))


def test_boxes_and_points_stay_on_their_pixels() -> None:
    assert check_turned(RandomRotate90(p=1)) == {(7, 11), (11, 7)}


def test_probabilities() -> None:
    u = np.random.default_rng(0).random((20_000, 2))
    turns = RandomRotate90(p=0.6).sample(u)["turns"]
    shares = np.bincount(turns, minlength=4) / len(turns)
    assert np.abs(shares - [0.4 + 0.15, 0.15, 0.15, 0.15]).max() < 0.015


def test_the_size_that_follows() -> None:
    image = Spec.of_image(3).with_size((20, 30))
    assert RandomRotate90(p=1).infer_spec(image).size is None
    assert RandomRotate90(p=0).infer_spec(image) == image
    square = image.with_size((20, 20))
    assert RandomRotate90(p=1).infer_spec(square) == square
