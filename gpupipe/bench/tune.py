"""Searches the fastest loader settings on this machine.

It optimises one setting after the other, then compares the best settings with the original ones.
`candidates` says which settings and values it tries. Every trial runs in a fresh process, and
rivals take turns, as in gpupipe.bench.compare.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from gpupipe.bench.cache_candidate import SETTING, CacheCandidate
from gpupipe.bench.compare import run_contest
from gpupipe.bench.comparison import Result, Side
from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.machine import machine
from gpupipe.bench.statistics import Ratio, ratio
from gpupipe.config import LoaderConfig
from gpupipe.engines.base import BatchStream

SCHEMA = "gpupipe-tune-1"
Tick = Callable[[str, int, int], None]
"""Called before each trial with its description, the seconds used, and the seconds in all."""

_TRIAL_SECONDS = 1.5
_MIN_BATCHES = 4
_TIMES_AHEAD = 3
"""The length of a trial in multiples of the batches prepared ahead. Shorter trials measure how fast
prepared batches are delivered, and not how fast batches are produced.
"""


@runtime_checkable
class Tunable(Protocol):
    """The class of an engine that has more to tune than its parallelism and `prefetch`."""

    def tunable(self, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        """Return the values that `gpupipe tune` tries for further settings. A class method.

        Args:
            on_gpu: Whether the loader runs on a GPU.
            cores: Numbers of threads or workers that fit this machine.
        """


Trial = Callable[[Side, Contest], ContestOutcome]

_ROUNDS = 2
_MIN_CONFIRMED, _MAX_CONFIRMED = 3, 10
_WORTH = 1.01
_FILLING = 0.5
"""The most of the time left that filling the decoded cache may take."""


@dataclass
class TuneResult:
    """The result of a search.

    Attributes:
        original: The outcomes of the original settings.
        trials: One list per setting that was tried: first its current value, then its rivals.
        changes: The best settings, as far as they differ from the original ones.
        best: The outcomes of the best settings; None if none was better.
        untried: The settings for which there was no time.
        trial_seconds: How long a trial takes.
        enough_seconds: How much time would allow the first untried setting; None if none is
            untried.
        interrupted: Whether Ctrl-C ended the search.
    """

    original: Result
    trials: list[list[Result]] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    best: Result | None = None
    untried: list[str] = field(default_factory=list)
    trial_seconds: float = 0.0
    enough_seconds: int | None = None
    interrupted: bool = False

    @property
    def gain(self) -> Ratio | None:
        """The speed of the best settings over the original ones; None if none was better."""
        return (
            ratio(self.best.rates, self.original.rates) if self.best and self.best.rates else None
        )

    @property
    def disturbed(self) -> float:
        """The most cores that other processes kept busy during a trial."""
        every = [
            self.original,
            *([self.best] if self.best else []),
            *(r for setting in self.trials for r in setting),
        ]
        return max((o.others for r in every for o in r.outcomes), default=0.0)

    @property
    def is_certain(self) -> bool:
        """Whether the best settings are faster beyond noise."""
        return self.gain is not None and self.gain.is_certain and self.gain.value > 1

    def as_json(self) -> dict[str, Any]:
        """Return all results and the machine, as plain JSON."""
        rates = [
            {"changes": r.side.changes, "images_per_second": r.rates}
            for setting in self.trials
            for r in setting
        ]
        return {
            "schema": SCHEMA,
            "machine": machine(),
            "changes": self.changes,
            "gain": self.gain and asdict(self.gain),
            "certain": self.is_certain,
            "confirmed": {
                "given": self.original.rates,
                "best": self.best.rates if self.best else [],
            },
            "trials": rates,
            "untried": self.untried,
            "enough_seconds": self.enough_seconds,
            "interrupted": self.interrupted,
        }


def candidates(
    options: LoaderConfig,
    engine: type[BatchStream],
    gpu: bool,
    cores: int,
    keep: Iterable[str],
    cache: CacheCandidate | None = None,
) -> dict[str, list[Any]]:
    """Return the values to try for each setting.

    batch_size comes last, because it also changes training.

    Args:
        options: The original settings.
        engine: The engine's class.
        gpu: Whether the loader runs on a GPU.
        cores: How many cores the process may use.
        keep: The settings to leave as they are.
        cache: The decoded cache to try; None for none.
    """
    around = sorted({max(1, cores // 2), cores, cores + max(1, cores // 2)})
    choices: dict[str, list[Any]] = {
        engine.traits.parallelism_setting: list(around),
        "prefetch": [1, 2, 4],
    }
    choices = {name: values for name, values in choices.items() if name in engine.settings}
    if isinstance(engine, Tunable):
        choices |= engine.tunable(gpu, around)
    if cache is not None:
        choices[SETTING] = [cache.options]
    choices["batch_size"] = sorted(
        {max(1, options.batch_size // 2), options.batch_size, options.batch_size * 2}
    )
    return {name: values for name, values in choices.items() if name not in set(keep)}


class Tuner:
    """Tries settings until `seconds` are used; raises EngineError if a trial fails."""

    def __init__(
        self,
        contest: Contest,
        options: LoaderConfig,
        cores: int,
        seconds: float,
        tick: Tick,
        trial: Trial = run_contest,
        fill_samples: int = 0,
    ) -> None:
        """Prepare a search.

        Args:
            contest: The work of each trial; the tuner sets the number of batches.
            options: The original settings.
            cores: How many cores the process may use.
            seconds: The time to use, about.
            tick: Called before each trial.
            trial: Runs one trial; by default in a fresh process.
            fill_samples: How many samples the first trial with the decoded cache decodes before
                it is timed.
        """
        self._fill_samples = fill_samples
        self._trial = trial
        self._contest, self._options, self._cores, self._tick = contest, options, cores, tick
        self._started, self._seconds = time.monotonic(), seconds
        self._images = 0
        self._costs: list[float] = []
        self.result = TuneResult(Result(Side("as given", {})))

    def run(self, choices: dict[str, list[Any]]) -> TuneResult:
        """Search, then confirm the best settings; Ctrl-C ends either and keeps the results."""
        try:
            self._measure_original()
            for name, values in choices.items():
                self._improve(name, values)
            self._confirm()
        except KeyboardInterrupt:
            self.result.interrupted = True
        return self.result

    def _measure_original(self) -> None:
        """Run one trial to find out how many images a trial needs, and one that counts."""
        size = self._options.batch_size
        self._images = _MIN_BATCHES * size
        outcome = self._try(self.result.original)
        self._images = math.ceil(
            max(self._images, _TRIAL_SECONDS * outcome.images / outcome.seconds)
        )
        self.result.original.outcomes.clear()
        self._try(self.result.original)

    def _improve(self, name: str, values: list[Any]) -> None:
        """Set `name` to its fastest value, if that is over 1 % faster than its current one."""
        now = self._value(name)
        rivals = [
            Result(Side(f"{name}={v}", self.result.changes | {name: v})) for v in values if v != now
        ]
        rounds = min(_ROUNDS, self._trials_left(2 * _MIN_CONFIRMED) // (len(rivals) + 1))
        if not rivals:
            return
        if name == SETTING and not self._has_time_to_fill():
            rounds = 0
        if not rounds:
            self._leave_untried(name, len(rivals) + 1)
            return
        holder = Result(Side(f"{name}={now}", dict(self.result.changes)))
        for _ in range(rounds):
            for rival in (holder, *rivals):
                self._try(rival)
        self.result.trials.append([holder, *rivals])
        best = max(rivals, key=lambda r: r.mean)
        if ratio(best.rates, holder.rates).value > _WORTH:
            self.result.changes = dict(best.side.changes)

    def _leave_untried(self, name: str, trials: int) -> None:
        """Record that there is no time for `trials` more trials and the confirmation."""
        self.result.untried.append(name)
        self.result.trial_seconds = statistics.median(self._costs)
        if self.result.enough_seconds is None:
            used = time.monotonic() - self._started
            enough = used + (trials + 2 * _MIN_CONFIRMED + 1) * self.result.trial_seconds
            self.result.enough_seconds = 10 * math.ceil(enough / 10)

    def _confirm(self) -> None:
        """Compare the best settings with the original ones, in as many rounds as time allows."""
        if not self.result.changes:
            return
        self.result.best = Result(Side("best", self.result.changes))
        self.result.original.outcomes.clear()
        for number in range(_MAX_CONFIRMED):
            if number >= _MIN_CONFIRMED and self._trials_left(0) < 2:
                break
            self._try(self.result.original)
            self._try(self.result.best)

    def _value(self, name: str) -> Any:
        value = self.result.changes.get(name, getattr(self._options, name, None))
        return self._cores if value == "auto" else value

    def _has_time_to_fill(self) -> bool:
        """Return whether an epoch, which fills the cache, takes less than half the time left."""
        left = self._seconds - (time.monotonic() - self._started)
        return self._fill_samples / self.result.original.mean < _FILLING * left

    def _trials_left(self, reserved: int) -> int:
        """Return how many more trials there is time for, with `reserved` trials held back."""
        left = self._seconds - (time.monotonic() - self._started)
        return max(0, int(left / statistics.median(self._costs)) - reserved)

    def _try(self, result: Result) -> Any:
        self._tick(
            result.side.name,
            int(min(self._seconds, time.monotonic() - self._started)),
            int(self._seconds),
        )
        size = result.side.changes.get("batch_size", self._options.batch_size)
        batches = max(_MIN_BATCHES, math.ceil(self._images / size))
        began = time.monotonic()
        outcome = self._trial(
            result.side, replace(self._contest, batches=batches, times_ahead=_TIMES_AHEAD)
        )
        self._costs.append(time.monotonic() - began)
        result.outcomes.append(outcome)
        return outcome
