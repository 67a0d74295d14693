"""How many samples an epoch has of each part of a data set that is mixed of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.index import Index
from gpupipe.errors import DataError, counted

Stop = Literal["first", "all", "never"]
_SLACK = 1e-9
"""Products of weights are rounded: 0.3 / 0.1 is 3."""


@runtime_checkable
class Mixing(Protocol):
    """A source that mixes others."""

    def mixture(self, index: Index) -> Mixture | None:
        """The proportions of an epoch."""


@dataclass(frozen=True)
class Mixture:
    """The parts of an index, which follow each other in it, and their proportions in an epoch.

    Attributes:
        names: The names of the parts.
        counts: The number of samples of each part.
        weights: The weight of each part, above 0.
        stop: When an epoch ends: after all samples of the part that is used up first; when all
            parts are used up; or "never", after `loader.epoch_size` samples.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]
    stop: Stop = "first"

    def __str__(self) -> str:
        """Return the proportions as a state has them: a 3, b 1, stop first."""
        parts = zip(self.names, self.weights, strict=True)
        return ", ".join([*(f"{name} {weight:g}" for name, weight in parts), f"stop {self.stop}"])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each part, int64 (parts,)."""
        return np.cumsum([0, *self.counts[:-1]], dtype=np.int64)

    def restrict(self, rows: NDArray[np.int64]) -> Mixture:
        """Return the mixture of chosen rows.

        Args:
            rows: The rows, ascending, int64 (n,).

        Raises:
            DataError: A part has none of them.
        """
        ends = np.searchsorted(rows, np.cumsum(self.counts))
        counts = np.diff(ends, prepend=0).tolist()
        if 0 in counts:
            name = self.names[counts.index(0)]
            raise DataError(f"data.parts.{name}: no sample of it is in loader.subset")
        return replace(self, counts=tuple(counts))

    def count_samples(self, size: int | None) -> NDArray[np.int64]:
        """Return how many samples of each part an epoch has, int64 (parts,).

        Args:
            size: The size of the epoch; None: as `stop` says.

        Raises:
            DataError: A part would have none.
        """
        weights, counts = np.array(self.weights), np.array(self.counts)
        if size is not None:
            found = _divide(size, weights)
        elif self.stop == "first":
            shares = weights * (counts / weights).min()
            found = np.minimum(np.floor(shares + _SLACK).astype(np.int64), counts)
        else:
            shares = weights * (counts / weights).max()
            found = np.maximum(np.ceil(shares - _SLACK).astype(np.int64), counts)
        if not found.all():
            name = self.names[int(np.argmin(found))]
            total = counted(int(found.sum()), "sample")
            raise DataError(
                f"data.parts.{name}.weight: so small that an epoch of {total} has none of it: "
                "make it larger"
            )
        return found


def _divide(size: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divide a number in proportion, with the largest remainders rounded up."""
    shares = size * weights / weights.sum()
    found: NDArray[np.int64] = np.floor(shares + _SLACK).astype(np.int64)
    order = np.argsort(-(shares - found), kind="stable")
    found[order[: size - int(found.sum())]] += 1
    return found


def interleave(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order in which any stretch holds the parts in proportion.

    Each of k parts is within k - 1 samples of its proportion; of two, within a sample.

    Args:
        counts: The number of samples of each part.

    Returns:
        The number of the part at each position, int64 (sum of counts,).
    """
    places = [(2 * np.arange(count) + 1) / (2 * count) for count in counts]
    parts = np.repeat(np.arange(len(places)), [len(place) for place in places])
    order: NDArray[np.int64] = parts[np.argsort(np.concatenate(places), kind="stable")]
    return order
