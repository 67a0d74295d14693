"""When an axis is logarithmic, and its ticks as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis

_LOG_FROM = 5.0
"""How many times the smallest mean the largest is, from which on an axis is logarithmic."""
_TICKS = (1.0, 2.0, 5.0)
"""The ticks of a decade. matplotlib's own, such as 3 x 10^2 beside 4 x 10^2, cover each other."""


def is_log_better(means: Sequence[float]) -> bool:
    """Whether the largest mean is so many times the smallest that small ones would be hidden."""
    return bool(means) and 0 < _LOG_FROM * min(means) < max(means)


def write_plain_ticks(axis: Axis) -> None:
    """Write 1, 2, 5, 10, 20, 50, 100, ... at a logarithmic axis, and nothing at its minor ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=_TICKS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
