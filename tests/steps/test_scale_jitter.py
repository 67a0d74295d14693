from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import ScaleJitter as Torchvision

from gpupipe.pipeline.step import Spec
from gpupipe.steps.scale_jitter import ScaleJitter
from helpers.distributions import largest_gap
from helpers.pipeline_texts import mistakes
from helpers.reference import differences


@pytest.mark.parametrize(
    "parameters",
    [{"scale_range": [0.5, 1.5]}, {"scale_range": [1, 1], "antialias": False}],
    ids=str,
)
def test_pixels_are_torchvisions_but_for_the_edge(
    gallery: Path, parameters: dict[str, Any]
) -> None:
    """At a factor of 2/3, a quarter of the pixels without antialias are rounded the other way."""
    found = differences(gallery, {"scale_jitter": {"target_size": [200, 300], **parameters}})
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < (0.2 if parameters.get("antialias", True) else 0.3)
    assert max(float(d.levels[:, 6:-6, 6:-6].max()) for d in found) <= 1


def test_nearest_takes_the_same_pixels(gallery: Path) -> None:
    parameters = {"target_size": [200, 300], "interpolation": "nearest"}
    found = differences(gallery, {"scale_jitter": parameters})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.01


def test_the_first_number_of_the_target_is_the_width() -> None:
    """As torchvision computes it."""
    step = ScaleJitter(target_size=(100, 1000), scale_range=(1, 1))
    p = step.sample(np.zeros((1, 1)))
    (shape,) = step.shape(p, np.array([[40.0, 50.0]]))
    made = Torchvision((100, 1000), (1, 1)).make_params([torch.zeros(3, 40, 50)])["size"]
    assert tuple(shape) == made == (80, 100)


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (7, 300)])
def test_distribution_is_torchvisions(size: tuple[int, int]) -> None:
    step = ScaleJitter(target_size=(600, 500))
    p = step.sample(np.random.default_rng(0).random((20_000, 1)))
    ours = step.shape(p, np.array(size, np.float64))
    torch.manual_seed(0)
    transform, image = Torchvision((600, 500)), torch.zeros(3, *size)
    theirs = np.array([transform.make_params([image])["size"] for _ in range(3000)])
    for axis in range(2):
        assert largest_gap(ours[:, axis], np.maximum(theirs[:, axis], 1)) < 2.2


def test_a_side_has_at_least_one_pixel() -> None:
    """torchvision fails here."""
    step = ScaleJitter(target_size=(10, 10), scale_range=(0.01, 0.01))
    p = {"scale": np.float64(0.01)}
    assert step.torch(torch.zeros(3, 40, 50), p).shape == (3, 1, 1)
    spec = Spec.of_image(3, 40, 50)
    assert (step.infer_spec(spec).size, step.infer_spec(spec).at_least) == (None, (1, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{target_size: 100}",
            "2:31: scale_jitter.target_size is 100, but should be [width, height] in pixels",
        ),
        (
            "{target_size: [9, 9], scale_range: [0, 1]}",
            "2:53: scale_jitter.scale_range.0 is 0, but should be above 0",
        ),
        (
            "{target_size: [9, 9], scale_range: [2, 1]}",
            "2:52: scale_jitter.scale_range is [2, 1], but should be [1, 2]: the smaller number "
            "first",
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert mistakes("decode", f"scale_jitter: {text}") == [message]
