"""Selection: which samples an epoch has, and how often each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.population import Mixture
from gpupipe.errors import StateError, shown

DEFAULTS: Mapping[str, Any] = {"repeats": 1, "weights": None, "epoch_size": None, "subset": None}
"""The settings of a Selection. A state holds those that differ from these defaults."""

MIXTURE = "mixture"
"""The key of a state that holds the proportions of a mixed data set."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Which samples an epoch has, and how often each of them; by default, all once.

    Attributes:
        repeats: How many times in a row each sample comes, at least 1.
        epoch_size: The number of samples of an epoch, over all ranks and with repeats; None: the
            number of samples that can be chosen; "all": every sample `repeats` times.
        rows: The rows of the index that can be chosen, ascending, int64 (n,); None: all.
        weights: The relative probability of each row of the index, float64 (N,); samples are then
            drawn with replacement. None: all samples come equally often.
        mixture: The proportions of the parts of a mixed data set; None: it is not mixed.
        settings: The settings of the selection that differ from DEFAULTS, as a state holds them. A
            subset from a file, or of a split, is stored as the number and the hash of its ids.
    """

    repeats: int = 1
    epoch_size: int | Literal["all"] | None = None
    rows: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    mixture: Mixture | None = None

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

    def overlaps(self, other: Selection) -> bool:
        """Whether this selection and `other` can choose the same row of an index."""
        if self.rows is None or other.rows is None:
            return True
        return bool(np.intersect1d(self.rows, other.rows).size)


ALL_ONCE = Selection()


def check_settings(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise StateError if a state has other settings of the order than a sampler.

    Args:
        state: The state.
        own: The sampler's own state.
    """
    theirs, ours = (s.get(MIXTURE) for s in (state, own))
    if theirs != ours:
        raise StateError(
            f"the state was made with the mixture {_yaml(theirs)}, and this loader has "
            f"{_yaml(ours)}: set the weights of data.parts and data.stop to what they were, or "
            "strict=False"
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
