"""Distributions of numbers that a YAML file may ask for, computed from uniform draws.

Each is called with uniform draws, float64 (B, num_uniforms) in [0, 1), and returns one value per
sample. It draws nothing itself, so the same draws yield the same values on every engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Distribution(Protocol):
    """Turns uniform draws into values.

    Attributes:
        num_uniforms: The number of uniform draws that one value needs.
    """

    @property
    def num_uniforms(self) -> int: ...

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        """Return the values, (B,) or (B, n), from draws (B, num_uniforms)."""


@dataclass(frozen=True)
class Uniform:
    """Numbers from `least` to `most`, all equally probable.

    Attributes:
        least: The smallest number.
        most: The largest. A whole number can be drawn; another cannot, as `u` is below 1.
        whole: Whether only whole numbers are drawn, int64.
    """

    least: float
    most: float
    whole: bool = False
    num_uniforms: int = 1

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        if self.whole:
            return (self.least + np.floor(u[:, 0] * (self.most - self.least + 1))).astype(np.int64)
        return self.least + u[:, 0] * (self.most - self.least)


@dataclass(frozen=True)
class Normal:
    """Normally distributed numbers, by the method of Box and Muller (1958).

    Attributes:
        mean: The mean.
        std: The standard deviation, 0 or more.
        whole: Whether the numbers are rounded to whole ones, int64.
    """

    mean: float
    std: float
    whole: bool = False
    num_uniforms: int = 2

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        radius = np.sqrt(-2.0 * np.log1p(-u[:, 0]))  # 1 - u is above 0
        values = self.mean + self.std * radius * np.cos(2.0 * np.pi * u[:, 1])
        return np.floor(values + 0.5).astype(np.int64) if self.whole else values


@dataclass(frozen=True)
class Choice:
    """One of several values, all equally probable.

    Attributes:
        values: Numbers, or tuples of equally many numbers.
    """

    values: tuple[Any, ...]
    num_uniforms: int = 1

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        number = np.floor(u[:, 0] * len(self.values)).astype(np.int64)
        return np.asarray(self.values)[number]


@dataclass(frozen=True)
class Flip:
    """1 with probability `p`, else 0, int64."""

    p: float
    num_uniforms: int = 1

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        return (u[:, 0] < self.p).astype(np.int64)


@dataclass(frozen=True)
class Vector:
    """Several values side by side, (B, n), some of them the same for all samples.

    Attributes:
        parts: For each of the n values its distribution, or a number.
    """

    parts: tuple[Distribution | float, ...]

    @property
    def num_uniforms(self) -> int:
        return sum(0 if isinstance(part, int | float) else part.num_uniforms for part in self.parts)

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        columns: list[NDArray[Any]] = []
        first = 0
        for part in self.parts:
            if isinstance(part, int | float):
                columns.append(np.full(len(u), part))
                continue
            columns.append(part(u[:, first : first + part.num_uniforms]))
            first += part.num_uniforms
        return np.stack(columns, -1)
