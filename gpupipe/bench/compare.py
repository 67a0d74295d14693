"""DALI on a GPU and on the CPU against torch's DataLoader, on the same cores, on the same samples
and draws.

Every side runs in a fresh process, and the sides take turns: round after round, so that what drifts
on the machine meets all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
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

SCHEMA = "gpupipe-compare-1"
_QUIET = 0.15
_NO_BOUND = 1000.0
"""Two rounds that differ a lot give intervals to the millions, which bound nothing."""
_STEADIER = "More --repeats or --batches, with nothing beside it, would tell."

Tick = Callable[[str, int, int], None]
"""Called before each contest: what comes, contests done, contests in all."""


@dataclass(frozen=True)
class Side:
    """One of those that are compared: the settings of the loader that make it so.

    workers: of a DataLoader.
    """

    name: str
    changes: dict[str, Any]
    workers: int | None = None


@dataclass
class Result:
    """A side and what it did in each round."""

    side: Side
    outcomes: list[ContestOutcome] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Images a second, of every round."""
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
    """All sides. notes: what a reader must know (sides that were left out, stand-in data). command:
    what the user typed, for a shell.

    repeats, contest: the rounds that were asked for, and what a side had to do in each; run() notes
    them down.
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
        """What ratios are taken to: the fastest DataLoader, else the slowest side."""
        loaders = [r for r in self.measured if r.side.workers is not None]
        return (
            max(loaders, key=lambda r: r.mean)
            if loaders
            else min(self.measured, key=lambda r: r.mean, default=None)
        )

    def ratio(self, result: Result) -> Ratio | None:
        """To the yardstick; None for the yardstick itself."""
        if self.yardstick is None or result is self.yardstick:
            return None
        return ratio(result.rates, self.yardstick.rates)

    def as_json(self) -> dict[str, Any]:
        """Everything measured, with where, as plain JSON."""
        sides = []
        for r in self.measured:
            found = self.ratio(r)
            numbers = {
                "images_per_second": {
                    "mean": r.mean,
                    "standard_deviation": r.deviation,
                    "rounds": r.rates,
                },
                "ratio": found and asdict(found),
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
    """Who is compared, and notes about who is not. Raises EngineError where nobody is left."""
    found: list[Side] = []
    notes: list[str] = []
    if config.loader.engine == "remote":
        found.append(Side("server", {"engine": "remote"}))
        notes.append(
            "the server has cores of its own, which are not held to those of the other "
            "sides, and whose CPU time is not counted"
        )
    if dali and gpus:
        found.append(Side("DALI on GPU", {"engine": "dali", "device": "gpu:0"}))
    if dali:
        found.append(Side("DALI on CPU", {"engine": "dali", "device": "cpu"}))
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
        found += [
            Side(
                f"DataLoader, {n} worker{'s' * (n != 1)}",
                {"engine": "dataloader", "workers": n, "device": device},
                n,
            )
            for n in workers
        ]
    if not found:
        raise EngineError(f"there is nothing to compare: {'; '.join(notes)}")
    return found, notes


def run(comparison: Comparison, contest: Contest, repeats: int, tick: Tick) -> None:
    """`repeats` rounds of all sides, into `comparison`.

    Ctrl-C ends it and keeps what was measured. Raises EngineError where a side fails.
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
    """What to say of the most cores that other processes kept busy meanwhile: nothing where they
    left them alone.
    """
    if cores < _QUIET:
        return []
    return [
        f"DISTURBED: other processes kept up to {cores:.1f} of these cores busy meanwhile: "
        "measure again with nothing beside it"
    ]


def contest_of(side: Side, contest: Contest) -> ContestOutcome:
    """What a side does in a fresh process. Raises EngineError where it fails."""
    given = asdict(contest) | {"changes": contest.changes | side.changes}
    command = [sys.executable, "-W", "ignore", "-m", "gpupipe.bench.contestant"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(json.dumps(given))
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        raise EngineError(
            f"{side.name} ended with exit code {process.returncode}: {err.strip()[-2000:]}"
        )
    found = json.loads(out.splitlines()[-1])
    if "error" in found:
        raise EngineError(f"{side.name}: {found['error']}")
    return ContestOutcome(**found)


def _end(process: subprocess.Popen[str]) -> None:
    """With its workers: they are of its session."""
    if hasattr(os, "killpg"):
        import signal

        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def verdict(comparison: Comparison) -> list[str]:
    """What it comes to, in sentences."""
    measured, yardstick = comparison.measured, comparison.yardstick
    if yardstick is None:
        return []
    if len(measured) < 2:
        return [f"Only {yardstick.side.name} was measured: there is nothing to compare it with."]
    best = max(measured, key=lambda r: r.mean)
    said = [_ahead(best, comparison)]
    loaders = sorted((r for r in measured if r.side.workers), key=lambda r: r.side.workers or 0)
    if len(loaders) > 1:
        said.append(_scaling(loaders))
    return said


def _ahead(best: Result, comparison: Comparison) -> str:
    rival = comparison.yardstick
    if rival is None or best is rival:
        rival = max((r for r in comparison.measured if r is not best), key=lambda r: r.mean)
    if short := _too_short((best, rival)):
        return f"Which is faster cannot be told: {short}."
    found = ratio(best.rates, rival.rates)
    ahead = f"{best.side.name} delivers {found.value:.2f} times as many images as {rival.side.name}"
    if found.low is None or found.high is None:
        return f"{ahead}, in a single round: --repeats 5 would tell how sure that is."
    sure = f"{interval(found)} times, with 95 % confidence"
    if found.vague:
        what = (
            f"{best.side.name} is faster than {rival.side.name}; how many times"
            if found.certain
            else f"Whether {best.side.name} or {rival.side.name} is faster"
        )
        return f"{what} cannot be told: the rounds differ too much ({sure}). {_STEADIER}"
    if not found.certain:
        return (
            f"{best.side.name} and {rival.side.name} are within the noise of each other ({sure})."
        )
    return f"{ahead} ({sure})."


def _too_short(results: Iterable[Result]) -> str:
    """Why the rounds of one of these tell no rate, and what would help; empty where all do."""
    for r in results:
        batches, made = r.outcomes[0].batches, r.outcomes[0].batches_ahead
        if batches <= made:
            return (
                f"a round has {counted(batches, 'batch', 'batches')}, and {r.side.name} makes "
                f"{made:,} ahead: --batches {4 * made} or more tells it"
            )
    return ""


def interval(found: Ratio) -> str:
    """Of a ratio that has one: "0.52 to 3.36"."""
    high = found.high or 0.0
    return f"{found.low:.2f} to {f'{high:.2f}' if high < _NO_BOUND else f'over {_NO_BOUND:,.0f}'}"


def _scaling(loaders: Sequence[Result]) -> str:
    """Where more workers stop helping."""
    for fewer, more in pairwise(loaders):
        gain = ratio(more.rates, fewer.rates)
        if _too_short((fewer, more)) or (gain.vague and not gain.certain):
            return (
                f"What the DataLoader gains from {more.side.workers} workers over "
                f"{fewer.side.workers} cannot be told. {_STEADIER}"
            )
        if not gain.certain or gain.value < 1:
            return (
                f"The DataLoader gains nothing certain from {more.side.workers} workers over "
                f"{fewer.side.workers}."
            )
    return f"The DataLoader still gains at {loaders[-1].side.workers} workers."
