"""ColorBranches: the branches of a switch, most of which change colours by one function.

Every back end can call the branches of the list. One that changes the colours of all samples in one
pass reads the attributes instead, so that a batch costs no calls for each branch.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.pipeline.primitives import Primitives

Branch = Callable[[Primitives], None]


class ColorBranches(list[Branch]):
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
        values: The numbers, clipped and truncated, (branches, B).
        others: The argument.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        values: NDArray[np.float64],
        others: Mapping[int, Branch] = MappingProxyType({}),
    ) -> None:
        low, high, are_whole = _find_ranges(names)
        clipped = np.clip(values, low, high)
        np.trunc(clipped, out=clipped, where=are_whole)
        self.names, self.values, self.others = names, clipped, others
        # Of functions that do not refer to this list: as a cycle, it would outlive its batch.
        super().__init__(
            others.get(n) or partial(_change_color, name=name, values=own)
            for n, (name, own) in enumerate(zip(names, clipped, strict=True))
        )


def _change_color(image: Primitives, name: str, values: NDArray[np.float64]) -> None:
    if name:
        image.color(name, *(values.astype(value.dtype) for value in COLOR_OPS[name].values))


_Column = NDArray[np.float64]


@lru_cache(maxsize=64)
def _find_ranges(names: tuple[str, ...]) -> tuple[_Column, _Column, NDArray[np.bool_]]:
    """Return the smallest and the largest value of each function, and whether it is whole, (n, 1).

    Functions without a value, and branches without a function, have 0.
    """
    rows = [COLOR_OPS[name].values[:1] if name else () for name in names]
    low = [row[0].min if row else 0.0 for row in rows]
    high = [row[0].max if row else 0.0 for row in rows]
    are_whole = [bool(row) and np.dtype(row[0].dtype).kind == "i" for row in rows]
    return np.array(low)[:, None], np.array(high)[:, None], np.array(are_whole, bool)[:, None]
