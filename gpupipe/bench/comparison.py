"""Comparison: what each side of `gpupipe compare` delivered, round by round, with ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.machine import machine
from gpupipe.bench.statistics import Ratio, ratio

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
        return statistics.stdev(self.rates) if len(self.rates) > 1 else None

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
