"""Compares DALI on a GPU and on the CPU with torch's DataLoader: same cores, samples and draws.

Every side runs in a fresh process. The sides take turns, round after round, so that a drift of the
machine affects all of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.machine import machine
from gpupipe.bench.memory import ADDED_UP, PSS
from gpupipe.bench.statistics import Ratio, ratio
from gpupipe.config import Config
from gpupipe.engines.base import has_torch_lowering
from gpupipe.errors import EngineError, counted
from gpupipe.runtime import child_process

SCHEMA = "gpupipe-compare-1"
_QUIET = 0.15
_NO_BOUND = 1000.0
"""Upper ends above this are printed as "over 1,000": two unequal rounds can yield millions."""
_STEADIER = "More --repeats or --batches, with nothing beside it, would tell."

Tick = Callable[[str, int, int], None]
"""Called before each contest with its description, the contests done, and the total."""


@dataclass(frozen=True)
class Side:
    """One of the loaders that are compared.

    Attributes:
        name: Its name in tables and plots.
        changes: The settings of the loader that differ from the config.
        workers: The number of DataLoader workers; None for DALI and for a server.

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
        return statistics.stdev(self.rates) if len(self.rates) > 1 else None

    def median(self, value: Callable[[ContestOutcome], float]) -> float:
        return statistics.median(value(o) for o in self.outcomes)


@dataclass
class Comparison:
    """The results of all sides, and the conditions under which they were measured.

    Attributes:
        results: One per side.
        notes: What a reader must know, such as sides that were left out, or stand-in data.
        cores: The numbers of the cores that every side was pinned to.
        interrupted: Whether Ctrl-C ended the comparison early.
        command: The command line, quoted for a shell.
        repeats: The number of rounds that were asked for; set by `run`.
        contest: The work of each side in each round; set by `run`.

    """

    results: list[Result]
    notes: list[str]
    cores: tuple[int, ...] = ()
    interrupted: bool = False
    command: str = ""
    repeats: int = 0
    contest: Contest | None = None

    @property
    def measured(self) -> list[Result]:
        return [r for r in self.results if r.outcomes]

    @property
    def yardstick(self) -> Result | None:
        """The side that ratios refer to: the fastest DataLoader, else the slowest side."""
        loaders = [r for r in self.measured if r.side.workers is not None]
        return (
            max(loaders, key=lambda r: r.mean)
            if loaders
            else min(self.measured, key=lambda r: r.mean, default=None)
        )

    def ratio(self, result: Result) -> Ratio | None:
        """Return the ratio of a side's rates to the yardstick's; None for the yardstick itself."""
        if self.yardstick is None or result is self.yardstick:
            return None
        return ratio(result.rates, self.yardstick.rates)

    def as_json(self) -> dict[str, Any]:
        """Return everything that was measured, and the machine, as plain JSON."""
        sides = []
        for r in self.measured:
            ratio_to_yardstick = self.ratio(r)
            numbers = {
                "images_per_second": {
                    "mean": r.mean,
                    "standard_deviation": r.deviation,
                    "rounds": r.rates,
                },
                "ratio": ratio_to_yardstick and asdict(ratio_to_yardstick),
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
        to = self.yardstick.side.name if self.yardstick else None
        return {
            "schema": SCHEMA,
            "machine": machine(),
            "command": self.command,
            "repeats": self.repeats,
            "contest": self.contest and asdict(self.contest),
            "notes": self.notes,
            "cores": self.cores,
            "interrupted": self.interrupted,
            "ratios_to": to,
            "sides": sides,
        }


def sides(
    config: Config, workers: Sequence[int], gpus: int, dali: bool
) -> tuple[list[Side], list[str]]:
    """Return the sides to compare, and notes about those that are left out.

    Args:
        config: The config to load.
        workers: The numbers of DataLoader workers to try.
        gpus: How many GPUs there are.
        dali: Whether DALI is installed.

    Raises:
        EngineError: If no side is left.

    """
    chosen: list[Side] = []
    notes: list[str] = []
    if config.loader.engine == "remote":
        chosen.append(Side("server", {"engine": "remote"}))
        notes.append(
            "the server has cores of its own, which are not held to those of the other "
            "sides, and whose CPU time is not counted"
        )
    if dali and gpus:
        chosen.append(Side("DALI on GPU", {"engine": "dali", "device": "gpu:0"}))
    if dali:
        chosen.append(Side("DALI on CPU", {"engine": "dali", "device": "cpu"}))
    if dali and not gpus:
        notes.append("no GPU here: DALI is measured on its CPU back end alone")
    if not dali:
        notes.append("DALI is not installed: only the DataLoader is measured")
    lacking = [e for e in config.pipeline.entries if not has_torch_lowering(e.step)]
    if lacking:
        named = ", ".join(f"{e.key} ({e.where})" for e in lacking)
        notes.append(
            f"no torch lowering: {named}; the DataLoader could not do the same work, and is "
            "left out"
        )
    else:
        device = "gpu:0" if gpus else "cpu"
        chosen += [
            Side(
                f"DataLoader, {n} worker{'s' * (n != 1)}",
                {"engine": "dataloader", "workers": n, "device": device},
                n,
            )
            for n in workers
        ]
    if not chosen:
        raise EngineError(f"there is nothing to compare: {'; '.join(notes)}")
    return chosen, notes


def run(comparison: Comparison, contest: Contest, repeats: int, tick: Tick) -> None:
    """Run `repeats` rounds of all sides, and add their outcomes to `comparison`.

    Ctrl-C ends the comparison and keeps what was measured.

    Raises:
        EngineError: If a side fails.

    """
    comparison.repeats, comparison.contest = repeats, contest
    total = repeats * len(comparison.results)
    try:
        for number in range(total):
            result = comparison.results[number % len(comparison.results)]
            tick(
                f"round {number // len(comparison.results) + 1} of {repeats}: {result.side.name}",
                number,
                total,
            )
            result.outcomes.append(contest_of(result.side, contest))
        tick("", total, total)
    except KeyboardInterrupt:
        comparison.interrupted = True
    note = next((o.note for r in comparison.measured for o in r.outcomes if o.note), "")
    if note:
        comparison.notes.insert(0, note)
    if any(o.peak_memory_kind != PSS for r in comparison.measured for o in r.outcomes):
        comparison.notes.append(f"peak memory is {ADDED_UP}")
    comparison.notes += disturbance(
        max((o.others for r in comparison.measured for o in r.outcomes), default=0.0)
    )


def disturbance(cores: float) -> list[str]:
    """Return a warning if other processes kept more than 0.15 of the cores busy; else nothing.

    Args:
        cores: The most cores that other processes kept busy during a measurement.

    """
    if cores < _QUIET:
        return []
    return [
        f"DISTURBED: other processes kept up to {cores:.1f} of these cores busy meanwhile: "
        "measure again with nothing beside it"
    ]


def contest_of(side: Side, contest: Contest) -> ContestOutcome:
    """Run one side's contest in a fresh process; raise EngineError if it fails."""
    request = asdict(contest) | {"changes": contest.changes | side.changes}
    process = child_process.run(
        "-W", "ignore", "-m", "gpupipe.bench.contestant", stdin=json.dumps(request).encode()
    )
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip()[-2000:]
        raise EngineError(f"{side.name} ended with exit code {process.returncode}: {reason}")
    answer = json.loads(process.stdout.splitlines()[-1])
    if "error" in answer:
        raise EngineError(f"{side.name}: {answer['error']}")
    return ContestOutcome(**answer)


def verdict(comparison: Comparison) -> list[str]:
    """Return the result of a comparison in sentences."""
    measured, yardstick = comparison.measured, comparison.yardstick
    if yardstick is None:
        return []
    if len(measured) < 2:
        return [f"Only {yardstick.side.name} was measured: there is nothing to compare it with."]
    best = max(measured, key=lambda r: r.mean)
    sentences = [_ahead(best, comparison)]
    loaders = sorted((r for r in measured if r.side.workers), key=lambda r: r.side.workers or 0)
    if len(loaders) > 1:
        sentences.append(_scaling(loaders))
    return sentences


def _ahead(best: Result, comparison: Comparison) -> str:
    rival = comparison.yardstick
    if rival is None or best is rival:
        rival = max((r for r in comparison.measured if r is not best), key=lambda r: r.mean)
    if short := _too_short((best, rival)):
        return f"Which is faster cannot be determined: {short}."
    lead = ratio(best.rates, rival.rates)
    ahead = f"{best.side.name} delivers {lead.value:.2f} times as many images as {rival.side.name}"
    if lead.low is None or lead.high is None:
        return f"{ahead}, in a single round: --repeats 5 would tell how sure that is."
    sure = f"{interval(lead)} times, with 95 % confidence"
    if lead.vague:
        what = (
            f"{best.side.name} is faster than {rival.side.name}; how many times"
            if lead.certain
            else f"Whether {best.side.name} or {rival.side.name} is faster"
        )
        return f"{what} cannot be determined: the rounds differ too much ({sure}). {_STEADIER}"
    if not lead.certain:
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


def interval(found: Ratio) -> str:
    """Format the confidence interval of a ratio that has one, such as "0.52 to 3.36"."""
    high = found.high or 0.0
    return f"{found.low:.2f} to {f'{high:.2f}' if high < _NO_BOUND else f'over {_NO_BOUND:,.0f}'}"


def _scaling(loaders: Sequence[Result]) -> str:
    """Return at how many workers the DataLoader stops gaining."""
    for fewer, more in pairwise(loaders):
        gain = ratio(more.rates, fewer.rates)
        if _too_short((fewer, more)) or (gain.vague and not gain.certain):
            return (
                f"What the DataLoader gains from {more.side.workers} workers over "
                f"{fewer.side.workers} cannot be determined. {_STEADIER}"
            )
        if not gain.certain or gain.value < 1:
            return (
                f"The DataLoader gains nothing certain from {more.side.workers} workers over "
                f"{fewer.side.workers}."
            )
    return f"The DataLoader still gains at {loaders[-1].side.workers} workers."
