"""Says in sentences which side of a comparison is faster, as far as the rounds are certain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpupipe.bench.comparison import Comparison, Result
from gpupipe.bench.statistics import Ratio, ratio
from gpupipe.errors import counted

_NO_BOUND = 1000.0
"""Upper ends above this are printed as "over 1,000": two unequal rounds can yield millions."""
_STEADIER = "More --repeats or --batches, with nothing beside it, would tell."


def describe_verdict(comparison: Comparison) -> list[str]:
    """Return the result of a comparison in sentences."""
    measured, baseline = comparison.measured, comparison.baseline
    if baseline is None:
        return []
    if len(measured) < 2:
        return [f"Only {baseline.side.name} was measured: there is nothing to compare it with."]
    best = max(measured, key=lambda r: r.mean)
    sentences = [_ahead(best, comparison)]
    loaders = sorted((r for r in measured if r.side.workers), key=lambda r: r.side.workers or 0)
    if len(loaders) > 1:
        sentences.append(_scaling(loaders))
    return sentences


def _ahead(best: Result, comparison: Comparison) -> str:
    rival = comparison.baseline
    if rival is None or best is rival:
        rival = max((r for r in comparison.measured if r is not best), key=lambda r: r.mean)
    if short := _too_short((best, rival)):
        return f"Which is faster cannot be determined: {short}."
    lead = ratio(best.rates, rival.rates)
    ahead = f"{best.side.name} delivers {lead.value:.2f} times as many images as {rival.side.name}"
    if lead.low is None or lead.high is None:
        return f"{ahead}, in a single round: --repeats 5 would tell how sure that is."
    sure = f"{format_interval(lead)} times, with 95 % confidence"
    if lead.is_vague:
        what = (
            f"{best.side.name} is faster than {rival.side.name}; how many times"
            if lead.is_certain
            else f"Whether {best.side.name} or {rival.side.name} is faster"
        )
        return f"{what} cannot be determined: the rounds differ too much ({sure}). {_STEADIER}"
    if not lead.is_certain:
        return (
            f"{best.side.name} and {rival.side.name} are within the noise of each other ({sure})."
        )
    return f"{ahead} ({sure})."


def _too_short(results: Iterable[Result]) -> str:
    """Return why a side's rounds are too short to measure a rate, and what would help; or ""."""
    for r in results:
        batches, ahead = r.outcomes[0].batches, r.outcomes[0].batches_ahead
        if batches <= ahead:
            return (
                f"a round has {counted(batches, 'batch', 'batches')}, and {r.side.name} makes "
                f"{ahead:,} ahead: --batches {4 * ahead} or more tells it"
            )
    return ""


def format_interval(bounds: Ratio) -> str:
    """Format the confidence interval of a ratio that has one, such as "0.52 to 3.36"."""
    high = bounds.high or 0.0
    return f"{bounds.low:.2f} to {f'{high:.2f}' if high < _NO_BOUND else f'over {_NO_BOUND:,.0f}'}"


def _scaling(loaders: Sequence[Result]) -> str:
    """Return at how many workers the DataLoader stops gaining."""
    for fewer, more in pairwise(loaders):
        gain = ratio(more.rates, fewer.rates)
        if _too_short((fewer, more)) or (gain.is_vague and not gain.is_certain):
            return (
                f"What the DataLoader gains from {more.side.workers} workers over "
                f"{fewer.side.workers} cannot be determined. {_STEADIER}"
            )
        if not gain.is_certain or gain.value < 1:
            return (
                f"The DataLoader gains nothing certain from {more.side.workers} workers over "
                f"{fewer.side.workers}."
            )
    return f"The DataLoader still gains at {loaders[-1].side.workers} workers."
