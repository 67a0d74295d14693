"""ColorBranches: the branches of a switch, most of which change colours by one function.

Every back end can call the branches. One that changes the colours of all samples in one pass reads
`names` and `values` instead, so that a batch costs no calls for each branch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
        values: The number of each function for each sample, float64 (B,), or one array for all
            functions. A function clips it to its range, and truncates it if it takes whole numbers.
        others: The other branches, by their positions. They keep the size of an image.

    Attributes:
        names: The argument.
        values: The argument.
        others: The argument.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        values: Sequence[NDArray[np.float64]],
        others: Mapping[int, Branch] = MappingProxyType({}),
    ) -> None:
        self.names, self.values, self.others = names, values, others

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(len(self))[number]]
        name = self.names[number]  # raises IndexError after the last
        if number in self.others:
            return self.others[number]
        value = self.values[number if len(self.values) > 1 else 0]
        return partial(_change_color, name=name, value=value)


def _change_color(image: Primitives, name: str, value: NDArray[np.float64]) -> None:
    if name:
        image.color(name, *clip_to_range(name, value))


def clip_to_range(name: str, value: NDArray[np.float64]) -> list[NDArray[Any]]:
    """Return the argument of a function of one number, or [] for one of none."""
    rows = COLOR_OPS[name].values
    return [np.clip(value, row.min, row.max).astype(row.dtype) for row in rows]
