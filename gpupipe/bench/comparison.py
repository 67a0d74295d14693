"""Comparison: what each side of `gpupipe compare` delivered, round by round, with ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.machine import machine
from gpupipe.bench.statistics import Ratio, deviation, ratio
from gpupipe.errors import counted

SCHEMA = "gpupipe-compare-1"


@dataclass(frozen=True)
class Side:
    """One of the loaders that are compared.

    Attributes:
        name: Its name in tables and plots.
        changes: The settings of the loader that differ from the config.
        workers: The number of worker processes; None for an engine without that setting.
    """

    name: str
    changes: dict[str, Any]
    workers: int | None = None


@dataclass
class Result:
    """The outcomes of one side, one per round."""

    side: Side
    outcomes: list[ContestOutcome] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Images per second in each round."""
        return [o.images / o.seconds for o in self.outcomes]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the rates; None for one round."""
        return deviation(self.rates)

    def median(self, value: Callable[[ContestOutcome], float]) -> float:
        return statistics.median(value(o) for o in self.outcomes)


DISTURBED = "DISTURBED"
"""How notes begin that put all figures in doubt."""


@dataclass(frozen=True)
class Comparison:
    """The results of all sides, and the conditions under which they were measured.

    Attributes:
        results: One per side.
        contest: The work of each side in each round.
        repeats: How many rounds were requested.
        notes: What a reader must know, such as sides that were left out, or stand-in data.
        command: The command line, quoted for a shell.
        interrupted: Whether Ctrl-C ended the comparison early.
    """

    results: list[Result]
    contest: Contest
    repeats: int
    notes: list[str]
    command: str = ""
    interrupted: bool = False

    @property
    def disturbed(self) -> list[str]:
        """The notes that put all figures in doubt."""
        return [note for note in self.notes if note.startswith(DISTURBED)]

    @property
    def plain_notes(self) -> list[str]:
        """The other notes."""
        return [note for note in self.notes if not note.startswith(DISTURBED)]

    @property
    def measured(self) -> list[Result]:
        return [r for r in self.results if r.outcomes]

    @property
    def baseline(self) -> Result | None:
        """The side that ratios refer to: the fastest DataLoader, else the slowest side."""
        loaders = [r for r in self.measured if r.side.workers is not None]
        return (
            max(loaders, key=lambda r: r.mean)
            if loaders
            else min(self.measured, key=lambda r: r.mean, default=None)
        )

    def ratio(self, result: Result) -> Ratio | None:
        """Return the ratio of a side's rates to the baseline's; None for the baseline itself."""
        if self.baseline is None or result is self.baseline:
            return None
        return ratio(result.rates, self.baseline.rates)

    def as_json(self) -> dict[str, Any]:
        """Return everything that was measured, and the machine, as plain JSON."""
        sides = []
        for r in self.measured:
            ratio_to_baseline = self.ratio(r)
            numbers = {
                "images_per_second": {
                    "mean": r.mean,
                    "standard_deviation": r.deviation,
                    "rounds": r.rates,
                },
                "ratio": ratio_to_baseline and asdict(ratio_to_baseline),
            }
            sides.append(
                {
                    "name": r.side.name,
                    "workers": r.side.workers,
                    "changes": r.side.changes,
                    **numbers,
                    "rounds": [asdict(o) for o in r.outcomes],
                }
            )
        to = self.baseline.side.name if self.baseline else None
        return {
            "schema": SCHEMA,
            "machine": machine(),
            "command": self.command,
            "repeats": self.repeats,
            "contest": asdict(self.contest),
            "notes": self.notes,
            "cores": self.contest.cores,
            "interrupted": self.interrupted,
            "ratios_to": to,
            "sides": sides,
        }


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
