from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import RandomShortestSize as Torchvision

from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_shortest_size import RandomShortestSize
from helpers.distributions import MOST, chi_square
from helpers.pipeline_texts import mistakes
from helpers.reference import differences


@pytest.mark.parametrize(
    "parameters", [{"min_size": [100, 150, 200]}, {"min_size": 200, "max_size": 256}], ids=str
)
def test_pixels_are_torchvisions_but_for_the_edge(
    gallery: Path, parameters: dict[str, Any]
) -> None:
    found = differences(gallery, {"random_shortest_size": parameters})
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < 0.2
    assert max(float(d.levels[:, 6:-6, 6:-6].max()) for d in found) <= 1


def test_nearest_takes_the_same_pixels(gallery: Path) -> None:
    parameters = {"min_size": [100, 150], "interpolation": "nearest"}
    found = differences(gallery, {"random_shortest_size": parameters})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.01


@pytest.mark.parametrize("max_size", [None, 150])
def test_each_sample_of_a_batch_gets_the_size_that_it_gets_alone(max_size: int | None) -> None:
    step = RandomShortestSize(min_size=(50, 70, 90), max_size=max_size)
    sizes = np.array([[375.0, 500.0], [500.0, 100.0], [49.0, 49.0]])
    lengths = np.array([50.0, 90.0, 70.0])
    alone = [step.shape({"short": s}, size) for s, size in zip(lengths, sizes, strict=True)]
    assert step.shape({"short": lengths}, sizes).tolist() == np.stack(alone).tolist()


@pytest.mark.parametrize("max_size", [None, 150])
def test_sizes_are_those_of_torchvision(max_size: int | None) -> None:
    """torchvision may round a length down to one less: 49 * (1 / 49) is less than 1."""
    image_sizes = [(375, 500), (500, 333), (49, 49), (49, 300), (98, 120), (7, 5)]
    for length in (7, 49, 97, 100, 123):
        step = RandomShortestSize(min_size=length, max_size=max_size)
        p = step.sample(np.zeros((1, 1)))
        transform = Torchvision(length, max_size)
        for size in image_sizes:
            (shape,) = step.shape(p, np.array([size], np.float64))
            expected = transform.make_params([torch.zeros(1, *size)])["size"]
            assert tuple(shape) == expected
            assert shape.min() >= step.min_side


def test_a_side_has_at_least_one_pixel() -> None:
    """torchvision fails here."""
    step = RandomShortestSize(min_size=1)
    p = {"short": np.float64(1.0)}
    assert step.shape(p, np.array([49.0, 49.0])).tolist() == [1, 1]
    assert step.torch(torch.zeros(3, 49, 49), p).shape == (3, 1, 1)


def test_all_lengths_are_equally_probable() -> None:
    lengths = list(range(480, 801, 32))
    step = RandomShortestSize(min_size=lengths, max_size=1333)
    drawn = step.sample(np.random.default_rng(0).random((20_000, 1)))["short"]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == lengths
    assert chi_square(counts) < MOST


def test_the_least_size_is_known_to_later_steps() -> None:
    spec = Spec.of_image(3, 40, 50)
    least = {
        max_size: RandomShortestSize(min_size=[20, 30], max_size=max_size).infer_spec(spec).at_least
        for max_size in (None, 40)
    }
    assert least == {None: (19, 19), 40: (1, 1)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{min_size: [20, 30], max_size: 25}",
            "2:25: random_shortest_size: min_size has 30, but the longer side is at most "
            "max_size, 25: make max_size larger",
        ),
        (
            "{min_size: []}",
            "2:36: random_shortest_size.min_size is [], but should be a number of pixels, or a "
            "list of numbers",
        ),
        (
            "{min_size: [20, 0]}",
            "2:41: random_shortest_size.min_size.1 is 0, but should be at least 1",
        ),
        (
            "{min_size: big}",
            "2:36: random_shortest_size.min_size is 'big', but should be a number of pixels, or a "
            "list of numbers",
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert mistakes("decode", f"random_shortest_size: {text}") == [message]
