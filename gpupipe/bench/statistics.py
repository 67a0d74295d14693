"""What repeated measurements say, and how surely."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T_95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
)
"""Student's t for 95 %, two-sided, with 1, 2, 3, ... degrees of freedom."""
_WIDEST = 4.0
"""The upper end of an interval over its lower one: half to twice as much, around the middle."""


@dataclass(frozen=True)
class Ratio:
    """How many times `a` is `b`, the geometric mean over rounds.

    low, high: the 95 % confidence interval; None for a single round.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out 1: the difference is not noise."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def vague(self) -> bool:
        """Whether the interval is so wide that the ratio tells nothing."""
        return self.low is not None and self.high is not None and self.high > _WIDEST * self.low


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Of two sides measured in the same rounds, side by side; what drifts from round to round falls
    out.
    """
    logs = [math.log(x / y) for x, y in zip(a, b, strict=False)]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(middle), None, None)
    half = t_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def t_95(freedom: int) -> float:
    """Student's t that 95 % stay below in absolute value."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    return 1.960 + 2.5 / freedom
