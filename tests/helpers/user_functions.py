"""Functions and classes as users write them, for the step python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def stamp(image: torch.Tensor, rng: torch.Generator, strength: float = 0.5) -> torch.Tensor:
    """Darkens each value by its own factor, in place."""
    noise = torch.rand(image.shape, generator=rng)
    return image.copy_((image * (1 - strength * noise)).to(image.dtype))


def speckle(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Random levels."""
    return torch.from_numpy(rng.integers(0, 256, tuple(image.shape), dtype=np.uint8))


def draws_of_torch(image: torch.Tensor) -> torch.Tensor:
    return (image * torch.rand(1)).to(image.dtype)


def draws_of_numpy(image: torch.Tensor) -> torch.Tensor:
    return (image * np.random.rand()).to(image.dtype)  # as users do


def draws_of_python(image: torch.Tensor) -> torch.Tensor:
    return (image * random.random()).to(image.dtype)


def draws_of_its_own(image: torch.Tensor) -> torch.Tensor:
    return (image * np.random.default_rng().random()).to(image.dtype)


def halve(image: torch.Tensor) -> torch.Tensor:
    """Gray floats from 0 to 1, of half the height and width."""
    return image.float()[:1, ::2, ::2] / 255


def trim(image: torch.Tensor) -> torch.Tensor:
    return image[:, :32, :32]


def refuse_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        raise LookupError("it is dark")
    return image


def cut_dark(image: torch.Tensor) -> torch.Tensor:
    return image[:, 1:] if image.float().mean() < 60 else image


def to_array(image: torch.Tensor) -> Any:
    return image.numpy()


class Divide:
    """Divides by a number; counts how often it was constructed."""

    constructed = 0

    def __init__(self, by: int) -> None:
        type(self).constructed += 1
        self.by = by

    def __call__(self, sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: image // self.by for name, image in sample.items()}
