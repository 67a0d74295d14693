"""The base of steps that resize, in a step that halves the sides."""

from typing import Any

import numpy as np
import pydantic
import pytest
import torch

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.random_resizing import ResizingStep


class Halve(ResizingStep):
    """Makes each side half as long, and two pixels at least."""

    @property
    def min_side(self) -> int:
        return 2

    def shape(self, p: Any, size: Any) -> Any:
        return np.maximum(np.floor(size / 2), 2)


def test_the_reference_has_the_shape_that_the_step_computes() -> None:
    image = torch.arange(3 * 9 * 3, dtype=torch.uint8).reshape(3, 9, 3)
    assert Halve().torch(image, {}).shape == (3, 4, 2)


def test_interpolation_and_antialias_are_torchvisions() -> None:
    image = torch.tensor([[[0, 0, 0, 200, 0, 0, 0, 0]] * 8], dtype=torch.uint8)
    nearest = Halve(interpolation="nearest").torch(image, {})
    assert torch.equal(nearest, image[:, ::2, ::2])
    soft, hard = (Halve(antialias=antialias).torch(image, {})[0, 0] for antialias in (True, False))
    assert hard.tolist() == [0, 100, 0, 0]
    assert (soft > 0).sum() > (hard > 0).sum()


def test_only_the_least_size_is_known_afterwards() -> None:
    spec = Halve().infer_spec(Spec.of_image(3, 40, 50))
    assert (spec.size, spec.at_least, spec.channels) == (None, (2, 2), 3)
    with pytest.raises(StepIncompatibleError):
        Halve().infer_spec(Spec())


def test_bicubic_without_antialias_is_refused() -> None:
    assert Halve(interpolation="bicubic").antialias
    with pytest.raises(pydantic.ValidationError, match="bicubic without antialias differs"):
        Halve(interpolation="bicubic", antialias=False)
