"""ColorBranches: the branches of a switch, most of which change colours by one function.

Every back end can call the branches. One that changes the colours of all samples in one pass reads
`names` and `choose_values` instead, so that a batch costs no calls for each branch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.pipeline.primitives import Primitives

Branch = Callable[[Primitives], None]


class ColorBranches(Sequence[Branch]):
    """Branches for Primitives.switch.

    Args:
        names: The function of each branch in COLOR_OPS, which takes one number or none; "" for a
            branch that changes nothing, or is one of `others`.
        values: The number of each function for each sample, float64 (branches, B), or (B,) if all
            functions have the same. It is clipped to the range of the function, and truncated where
            the function takes whole numbers.
        others: The other branches, by their positions. They keep the size of an image.

    Attributes:
        names: The argument.
        others: The argument.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        values: NDArray[np.float64],
        others: Mapping[int, Branch] = MappingProxyType({}),
    ) -> None:
        self.names, self.others, self._values = names, others, values

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(len(self))[number]]
        name = self.names[number]  # raises IndexError after the last
        if number in self.others:
            return self.others[number]
        return partial(_change_color, name=name, values=self._clipped[number])

    def choose_values(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the number of each sample's function, (B,), clipped and truncated.

        Args:
            index: The branch of each sample, (B,).
        """
        if self._values.ndim == 2:  # each is chosen, such as those of color_jitter
            chosen: NDArray[np.float64] = self._clipped[index, np.arange(len(index))]
            return chosen
        low, high, are_whole = _find_ranges(self.names)
        return _clip(self._values, low[index], high[index], are_whole[index])

    @cached_property
    def _clipped(self) -> NDArray[np.float64]:
        """The values of all branches, (branches, B)."""
        low, high, are_whole = _find_ranges(self.names)
        return _clip(self._values, low[:, None], high[:, None], are_whole[:, None])


def _clip(
    values: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    are_whole: NDArray[np.bool_],
) -> NDArray[np.float64]:
    clipped = np.minimum(np.maximum(values, low), high)  # np.clip has more overhead
    np.trunc(clipped, out=clipped, where=are_whole)
    return clipped


def _change_color(image: Primitives, name: str, values: NDArray[np.float64]) -> None:
    if name:
        image.color(name, *(values.astype(value.dtype) for value in COLOR_OPS[name].values))


_Row = NDArray[np.float64]


@lru_cache(maxsize=64)
def _find_ranges(names: tuple[str, ...]) -> tuple[_Row, _Row, NDArray[np.bool_]]:
    """Return the smallest and the largest value of each function, and whether it is whole, (n,).

    Functions without a value, and branches without a function, have 0.
    """
    rows = [COLOR_OPS[name].values[:1] if name else () for name in names]
    low = [row[0].min if row else 0.0 for row in rows]
    high = [row[0].max if row else 0.0 for row in rows]
    are_whole = [bool(row) and np.dtype(row[0].dtype).kind == "i" for row in rows]
    return np.array(low), np.array(high), np.array(are_whole, bool)
