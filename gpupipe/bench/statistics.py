"""Ratios of repeated measurements, with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T_95 = [
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
]
"""Student's t for 95 %, two-sided, with 1, 2, 3, ... degrees of freedom."""
_WIDEST = 4.0
"""The widest useful interval, as its upper end over its lower: half to twice the middle."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one side is as another.

    Attributes:
        value: The geometric mean of the ratios over rounds.
        low: The lower end of the 95 % confidence interval; None for a single round.
        high: The upper end of the 95 % confidence interval; None for a single round.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 1, so that the difference is not noise."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def is_vague(self) -> bool:
        """Whether the interval is too wide for the ratio to mean anything."""
        return self.low is not None and self.high is not None and self.high > _WIDEST * self.low


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio of `a` to `b`, which were measured in the same rounds.

    It compares each round of `a` with the same round of `b`, so drift between rounds cancels. The
    interval is Student's t on the logarithms of the ratios.
    """
    logs = [math.log(x / y) for x, y in zip(a, b, strict=False)]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(middle), None, None)
    half = t_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of values; None for a single one."""
    return statistics.stdev(values) if len(values) > 1 else None


def t_95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t; approximate above 20 degrees."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    return 1.960 + 2.5 / freedom
