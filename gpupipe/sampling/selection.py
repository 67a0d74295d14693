"""Selection: which samples an epoch has, and how often each of them.

A Mixture computes how many samples an epoch takes from each part of a mixed data set, and
`interleave` computes their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.index import Index
from gpupipe.errors import DataError, StateError, counted, shown
from gpupipe.sampling.chunk_order import ChunkOrder

DEFAULTS: Mapping[str, Any] = {"repeats": 1, "weights": None, "epoch_size": None, "subset": None}
"""The default settings of a Selection. A loader state stores only those that differ from them."""

MIXTURE = "mixture"
"""The key under which a loader state stores the proportions of a mixed data set."""

CHUNK_ORDER = "chunk_order"
"""The key under which a loader state stores a ChunkOrder."""

Stop = Literal["first", "all", "never"]
_SLACK = 1e-9
"""Tolerance for rounding errors: 0.3 / 0.1 is 2.9999999999999996, and should count as 3."""


@runtime_checkable
class Mixing(Protocol):
    """A source that mixes the samples of several sources."""

    def mixture(self, index: Index) -> "Mixture | None":
        """Return the proportions of the parts in an epoch; None if an epoch has all samples."""


@dataclass(frozen=True)
class Mixture:
    """The parts of a mixed data set, one after another in the index, and their shares of an epoch.

    Attributes:
        names: The names of the parts.
        counts: The number of samples of each part.
        weights: The weight of each part, above 0.
        stop: When an epoch ends. "first": as soon as one part is used up; "all": when every part
            is used up; "never": after `loader.epoch_size` samples.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]
    stop: Stop = "first"

    def __str__(self) -> str:
        """Return the text that a loader state stores, such as "a 3, b 1, stop first"."""
        parts = zip(self.names, self.weights, strict=True)
        return ", ".join([*(f"{name} {weight:g}" for name, weight in parts), f"stop {self.stop}"])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each part, int64 (parts,)."""
        return np.cumsum([0, *self.counts[:-1]], dtype=np.int64)

    def restrict(self, rows: NDArray[np.int64]) -> "Mixture":
        """Return the mixture in which each part keeps only its samples that are in `rows`.

        Args:
            rows: The rows of the index, ascending, int64 (n,).

        Raises:
            DataError: A part has none of these rows.
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
            size: The number of samples of the epoch; None if `stop` determines it.

        Raises:
            DataError: The epoch would have no sample of a part.
        """
        weights, counts = np.array(self.weights), np.array(self.counts)
        if size is not None:
            sizes = _divide(size, weights)
        elif self.stop == "first":
            shares = weights * (counts / weights).min()
            sizes = np.minimum(np.floor(shares + _SLACK).astype(np.int64), counts)
        else:
            shares = weights * (counts / weights).max()
            sizes = np.maximum(np.ceil(shares - _SLACK).astype(np.int64), counts)
        if not sizes.all():
            name = self.names[int(np.argmin(sizes))]
            total = counted(int(sizes.sum()), "sample")
            raise DataError(
                f"data.parts.{name}.weight: so small that an epoch of {total} has none of it: "
                "make it larger"
            )
        return sizes


def _divide(size: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Split `size` into integers in proportion to `weights`; round the largest remainders up."""
    shares = size * weights / weights.sum()
    sizes: NDArray[np.int64] = np.floor(shares + _SLACK).astype(np.int64)
    order = np.argsort(-(shares - sizes), kind="stable")
    sizes[order[: size - int(sizes.sum())]] += 1
    return sizes


def interleave(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order of samples that mixes the parts evenly, not only over the whole epoch.

    Any run of positions has each part's samples in proportion: with k parts, their number differs
    from the part's share of the run by at most k - 1.

    Args:
        counts: The number of samples of each part.

    Returns:
        The number of the part at each position, int64 (sum of counts,).
    """
    positions = [(2 * np.arange(count) + 1) / (2 * count) for count in counts]
    parts = np.repeat(np.arange(len(positions)), [len(position) for position in positions])
    order: NDArray[np.int64] = parts[np.argsort(np.concatenate(positions), kind="stable")]
    return order


@dataclass(frozen=True, eq=False)
class Selection:
    """Which samples an epoch has, and how often each of them; by default, all once.

    Attributes:
        repeats: How many times in a row each sample comes, at least 1.
        epoch_size: The number of samples of an epoch, over all ranks and with repeats; None: the
            number of samples that can be chosen; "all": every sample `repeats` times.
        rows: The rows of the index that can be chosen, ascending, int64 (n,); None: all.
        weights: The relative probability of each row of the index, float64 (N,) for N rows;
            samples are then drawn with replacement. None: all samples come equally often.
        mixture: The proportions of the parts of a mixed data set; None: it is not mixed.
        chunks: The order of a shuffled pass; None: a permutation of all samples.
        settings: The settings that differ from DEFAULTS, as a loader state stores them. A subset
            from a file, or of a split, is stored as the number and the hash of its ids.
    """

    repeats: int = 1
    epoch_size: int | Literal["all"] | None = None
    rows: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    mixture: Mixture | None = None
    chunks: ChunkOrder | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether an epoch may have a sample more than once."""
        if self.mixture is not None:
            return True  # an epoch may hold the end of a pass through a part, and the next start
        is_part = self.epoch_size not in (None, "all")
        return self.repeats > 1 or self.weights is not None or is_part

    def epoch_size_of(self, count: int) -> int:
        """Return how many samples an epoch has if `count` samples can be chosen."""
        if self.mixture is not None:
            return int(self.count_of_parts().sum())
        if self.epoch_size == "all":
            return count * self.repeats
        return count if self.epoch_size is None or not count else self.epoch_size

    def count_of_parts(self) -> NDArray[np.int64]:
        """Return how many samples of each part an epoch of a mixture has, int64 (parts,)."""
        assert self.mixture is not None
        return self.mixture.count_samples(
            self.epoch_size if isinstance(self.epoch_size, int) else None
        )

    def overlaps(self, other: "Selection") -> bool:
        """Return whether there may be a row of the index that both selections can choose."""
        if self.rows is None or other.rows is None:
            return True
        return bool(np.intersect1d(self.rows, other.rows).size)


ALL_ONCE = Selection()


def check_settings(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise StateError if a saved state has another selection or order of samples than `own`.

    Args:
        state: The saved state, to be loaded.
        own: The sampler's present state.
    """
    theirs, ours = (s.get(MIXTURE) for s in (state, own))
    if theirs != ours:
        raise StateError(
            f"the state was made with the mixture {_yaml(theirs)}, and this loader has "
            f"{_yaml(ours)}: set the weights of data.parts and data.stop to what they were, or "
            "strict=False"
        )
    theirs, ours = (s.get(CHUNK_ORDER) for s in (state, own))
    if theirs != ours:
        orders = (f"of {order}" if order else "of rows" for order in (theirs, ours))
        raise StateError(
            f"the state was made with an order {next(orders)}, and this loader has one "
            f"{next(orders)}: set data.order and data.buffer to what they were, or strict=False"
        )
    for key in ("seed", "shuffle", *DEFAULTS):
        theirs, ours = (s.get(key, DEFAULTS.get(key)) for s in (state, own))
        if theirs != ours:
            is_file = key == "subset" and isinstance(theirs, str)
            remedy = "to the file with these ids" if is_file else f"={_yaml(theirs)}"
            if is_file and theirs.count(",") > 1:  # "train, 900 ids, HASH" is a part of a split
                remedy = "and loader.split to what they were"
            raise StateError(
                f"the state was made with {key} {_yaml(theirs)}, and this loader has "
                f"{key} {_yaml(ours)}: set loader.{key}{' ' * is_file}{remedy}, or strict=False"
            )


def _yaml(value: Any) -> str:
    return "null" if value is None else shown(value)
