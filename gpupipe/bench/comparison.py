"""Holds the results of a comparison of loaders, and describes which one is fastest.

    Comparison          the results of all contestants, and the conditions of the measurement
      Result            the outcomes of one contestant, one per round
    Ratio               the speed of one contestant over another, with its confidence interval
    describe_verdict    the comparison in sentences

Rounds are paired: a ratio compares what two contestants delivered in the same round.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.machine import machine
from gpupipe.bench.measure import Rates
from gpupipe.errors import counted

SCHEMA = "gpupipe-compare-2"
DISTURBED = "DISTURBED"
"""The beginning of a note that puts all figures in doubt."""
_T_95 = [
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
]
"""Student's t for 95 %, two-sided, with 1, 2, 3, ... degrees of freedom."""
_WIDEST = 4.0
"""An interval is vague if its upper end is more than this many times its lower end."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one contestant is as another.

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
    """Return how many times as high the rates `a` are as the rates `b`.

    Each round of `a` is compared with the same round of `b`, so drift between rounds cancels. The
    confidence interval comes from Student's t on the logarithms of the ratios.

    Args:
        a: One rate per round, such as images per second.
        b: The rates to compare with, from the same rounds.
    """
    logs = [math.log(x / y) for x, y in zip(a, b, strict=False)]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(middle), None, None)
    half = t_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def t_95(freedom: int) -> float:
    """Return Student's t for 95 %, two-sided; approximate above 20 degrees of freedom."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    return 1.960 + 2.5 / freedom


@dataclass(frozen=True)
class Contestant:
    """One of the loaders that are compared.

    Attributes:
        name: Its name in tables and plots.
        changes: The settings of the loader that differ from the config.
        workers: The number of worker processes; None for an engine without that setting.
        against: "module:function" of a loader of the user's; "" for the config's.
    """

    name: str
    changes: dict[str, Any]
    workers: int | None = None
    against: str = ""


@dataclass
class Result(Rates):
    """The outcomes of one contestant, one per round."""

    contestant: Contestant
    outcomes: list[ContestOutcome] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [o.images / o.seconds for o in self.outcomes]

    @property
    def times(self) -> list[float]:
        """Seconds per 100 batches in each round."""
        return [100 * o.seconds / o.batches for o in self.outcomes]

    def median(self, value: Callable[[ContestOutcome], float]) -> float:
        return statistics.median(map(value, self.outcomes))


@dataclass(frozen=True)
class Comparison:
    """The results of all contestants, and the conditions under which they were measured.

    Attributes:
        results: One per contestant.
        contest: The work of each contestant in each round.
        repeats: How many rounds were requested.
        notes: Notes for the reader, such as engines that were left out, or stand-in data.
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
        """All notes except those in `disturbed`."""
        return [note for note in self.notes if not note.startswith(DISTURBED)]

    @property
    def measured(self) -> list[Result]:
        """The results of the contestants that have run in at least one round."""
        return [r for r in self.results if r.outcomes]

    @property
    def loaders(self) -> list[Result]:
        """The results of the contestants that are DataLoaders, fewest workers first."""
        loaders = [r for r in self.measured if r.contestant.workers is not None]
        return sorted(loaders, key=lambda r: r.contestant.workers or 0)

    @property
    def data(self) -> dict[str, Any]:
        """The first `ContestOutcome.data` that is not empty, or {} if there is none."""
        return next((o.data for r in self.measured for o in r.outcomes if o.data), {})

    @property
    def baseline(self) -> Result | None:
        """The result to which the others are compared; None if nothing was measured.

        It is the user's loader, else the fastest DataLoader. If neither was measured, it is the
        slowest contestant.
        """
        if own := [r for r in self.measured if r.contestant.against]:
            return own[0]
        if loaders := self.loaders:
            return max(loaders, key=lambda r: r.mean)
        return min(self.measured, key=lambda r: r.mean, default=None)

    def ratio(self, result: Result) -> Ratio | None:
        """Return the ratio of a result's rates to the baseline's; None for the baseline itself."""
        if self.baseline is None or result is self.baseline:
            return None
        return ratio(result.rates, self.baseline.rates)

    def as_json(self) -> dict[str, Any]:
        """Return all measurements and the machine, as plain JSON."""
        return {
            "schema": SCHEMA,
            "machine": machine(),
            "command": self.command,
            "repeats": self.repeats,
            "contest": asdict(self.contest),
            "notes": self.notes,
            "cores": self.contest.cores,
            "interrupted": self.interrupted,
            "ratios_to": self.baseline.contestant.name if self.baseline else None,
            "sides": list(map(self._result_as_json, self.measured)),
        }

    def _result_as_json(self, result: Result) -> dict[str, Any]:
        times_baseline = self.ratio(result)
        return asdict(result.contestant) | {
            "images_per_second": result.rates_as_json("rounds"),
            "ratio": times_baseline and asdict(times_baseline),
            "rounds": [asdict(o) for o in result.outcomes],
        }


_NO_BOUND = 1000.0
"""Upper ends above this are printed as "over 1,000": two unequal rounds can yield millions."""
_STEADIER = "More --repeats or --batches, with nothing beside it, would tell."


def describe_verdict(comparison: Comparison, advice: str = _STEADIER) -> list[str]:
    """Say in sentences which contestant is fastest, and if more workers speed up a DataLoader.

    Args:
        comparison: The results.
        advice: The sentence on what to do if the rounds differ too much.
    """
    measured, baseline = comparison.measured, comparison.baseline
    if baseline is None:
        return []
    if len(measured) < 2:
        name = baseline.contestant.name
        return [f"Only {name} was measured: there is nothing to compare it with."]
    sentences = [_describe_lead(comparison, baseline, advice)]
    loaders = [r for r in comparison.loaders if r.contestant.workers]
    if len(loaders) > 1:
        sentences.append(_describe_scaling(loaders, advice))
    return sentences


def _describe_lead(comparison: Comparison, rival: Result, advice: str) -> str:
    """Compare the fastest contestant with `rival`; if `rival` is the fastest, with the second."""
    best, second = sorted(comparison.measured, key=lambda r: -r.mean)[:2]
    rival = second if best is rival else rival
    if short := _describe_shortness((best, rival)):
        return f"Which is faster cannot be determined: {short}."
    lead, name, other = ratio(best.rates, rival.rates), best.contestant.name, rival.contestant.name
    ahead = f"{name} delivers {lead.value:.2f} times as many images as {other}"
    if lead.low is None or lead.high is None:
        return f"{ahead}, in a single round: --repeats 5 would tell how sure that is."
    sure = f"{format_interval(lead)} times, with 95 % confidence"
    if lead.is_vague:
        question = (
            f"{name} is faster than {other}; how many times"
            if lead.is_certain
            else f"Whether {name} or {other} is faster"
        )
        return f"{question} cannot be determined: the rounds differ too much ({sure}). {advice}"
    if not lead.is_certain:
        return f"{name} and {other} are within the noise of each other ({sure})."
    return f"{ahead} ({sure})."


def _describe_shortness(results: Iterable[Result]) -> str:
    """Return why a round is too short to measure a rate, with advice; "" if none is too short."""
    for r in results:
        batches, ahead = r.outcomes[0].batches, r.outcomes[0].batches_ahead
        if batches <= ahead:
            return (
                f"a round has {counted(batches, 'batch', 'batches')}, and {r.contestant.name} "
                f"makes {ahead:,} ahead: --batches {4 * ahead} or more tells it"
            )
    return ""


def format_interval(bounds: Ratio) -> str:
    """Format the confidence interval of a ratio that has one, such as "0.52 to 3.36"."""
    high = bounds.high or 0.0
    return f"{bounds.low:.2f} to {f'{high:.2f}' if high < _NO_BOUND else f'over {_NO_BOUND:,.0f}'}"


def _describe_scaling(loaders: Sequence[Result], advice: str) -> str:
    """Say in a sentence at how many workers the DataLoader stops getting faster."""
    for fewer, more in pairwise(loaders):
        gain = ratio(more.rates, fewer.rates)
        steps = f"from {more.contestant.workers} workers over {fewer.contestant.workers}"
        if _describe_shortness((fewer, more)) or (gain.is_vague and not gain.is_certain):
            return f"What the DataLoader gains {steps} cannot be determined. {advice}"
        if not gain.is_certain or gain.value < 1:
            return f"The DataLoader gains nothing certain {steps}."
    return f"The DataLoader still gains at {loaders[-1].contestant.workers} workers."
