"""Searches the fastest loader settings on this machine, for `gpupipe tune`.

It optimises one setting after the other, then compares the best settings with the original ones.
candidates.py lists the settings and values to try. Each trial runs in a fresh process. The values
of a setting take turns, round after round.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml

from gpupipe.bench.candidates import CACHE_SETTING, nest_settings
from gpupipe.bench.compare import run_contest
from gpupipe.bench.comparison import Contestant, Ratio, Result, ratio
from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.machine import machine
from gpupipe.bench.measure import Tick
from gpupipe.config import LoaderConfig

SCHEMA = "gpupipe-tune-1"
Trial = Callable[[Contestant, Contest], ContestOutcome]

_TRIAL_SECONDS = 1.5
_MIN_BATCHES = 4
_TIMES_AHEAD = 3
"""The length of a trial in multiples of the batches prepared ahead. Shorter trials measure how fast
prepared batches are delivered, and not how fast batches are produced.
"""
_ROUNDS = 2
_MIN_CONFIRMED, _MAX_CONFIRMED = 3, 10
_WORTH = 1.01
_FILLING = 0.5
"""The largest share of the time left that filling the decoded cache may take."""


@dataclass
class TuneResult:
    """What a Tuner found in its search for the fastest settings.

    Attributes:
        original: The outcomes of the original settings.
        trials: One list per setting that was tried, with one result per value; the value that the
            setting had before comes first.
        changes: The best settings, as far as they differ from the original ones.
        best: The outcomes of the best settings in the last comparison with the original ones; None
            before this comparison, and if no other settings were faster.
        untried: The settings for which there was no time.
        trial_seconds: How long a trial takes.
        enough_seconds: The value of --seconds that would be enough to try the first untried
            setting; None if all were tried.
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
    def tried(self) -> list[Result]:
        """The results of all values that were tried, without those of the last comparison."""
        return [result for setting in self.trials for result in setting]

    @property
    def gain(self) -> Ratio | None:
        """The speed of the best settings over the original ones; None if it was not measured."""
        if self.best is None or not self.best.rates:
            return None
        return ratio(self.best.rates, self.original.rates)

    @property
    def disturbed(self) -> float:
        """The largest number of cores that other processes kept busy during a trial."""
        results = [self.original, *self.tried, *([self.best] if self.best else [])]
        return max((o.others for r in results for o in r.outcomes), default=0.0)

    @property
    def is_certain(self) -> bool:
        """Whether the best settings are faster beyond noise."""
        return self.gain is not None and self.gain.is_certain and self.gain.value > 1

    def as_json(self) -> dict[str, Any]:
        """Return all results and the machine, as plain JSON."""
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
            "trials": [
                {"changes": r.contestant.changes, "images_per_second": r.rates} for r in self.tried
            ],
            "untried": self.untried,
            "enough_seconds": self.enough_seconds,
            "interrupted": self.interrupted,
        }


class Tuner:
    """Tries settings until `seconds` are used; raises EngineError if a trial fails.

    Args:
        contest: The work of each trial; the tuner sets the number of batches.
        options: The original settings.
        cores: How many cores the process may use.
        seconds: The time to use, about.
        tick: Called before each trial, with the seconds used and available.
        trial: Runs one trial; by default in a fresh process.
        fill_samples: How many samples the first trial with the decoded cache decodes before it is
            timed.

    Attributes:
        result: The results so far.
    """

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
        self._contest, self._options, self._cores, self._tick = contest, options, cores, tick
        self._trial, self._fill_samples = trial, fill_samples
        self._started, self._seconds = time.monotonic(), seconds
        self._images = _MIN_BATCHES * options.batch_size
        self._costs: list[float] = []
        self.result = TuneResult(Result(Contestant("as given", {})))

    def run(self, choices: dict[str, list[Any]]) -> TuneResult:
        """Search the best settings, then compare them once more with the original ones.

        Ctrl-C ends the search or the comparison, and keeps the results.

        Args:
            choices: Maps the name of each setting to the values to try.
        """
        try:
            self._measure_original()
            for name, values in choices.items():
                self._improve(name, values)
            self._confirm()
        except KeyboardInterrupt:
            self.result.interrupted = True
        return self.result

    def _measure_original(self) -> None:
        """Find the number of images per trial in a first trial; then time the original settings."""
        original = self.result.original
        self._try(original)
        self._images = math.ceil(max(self._images, _TRIAL_SECONDS * original.mean))
        original.outcomes.clear()
        self._try(original)

    def _improve(self, name: str, values: list[Any]) -> None:
        """Try all values of the setting `name`, if there is time.

        If the fastest of the new values gains over 1 %, it becomes the value of the setting.
        """
        now, changes = self._value(name), self.result.changes
        holder = Result(Contestant(f"{name}={now}", dict(changes)))
        rivals = [
            Result(Contestant(f"{name}={v}", changes | {name: v})) for v in values if v != now
        ]
        if not rivals:
            return
        rounds = min(_ROUNDS, self._count_trials_left(2 * _MIN_CONFIRMED) // (len(rivals) + 1))
        if not rounds or (name == CACHE_SETTING and not self._has_time_to_fill()):
            self._leave_untried(name, len(rivals) + 1)
            return
        for _ in range(rounds):
            for rival in (holder, *rivals):
                self._try(rival)
        self.result.trials.append([holder, *rivals])
        best = max(rivals, key=lambda r: r.mean)
        if ratio(best.rates, holder.rates).value > _WORTH:
            self.result.changes = dict(best.contestant.changes)

    def _leave_untried(self, name: str, trials: int) -> None:
        """Record that there is no time to try `name`, which needs `trials` trials."""
        self.result.untried.append(name)
        self.result.trial_seconds = statistics.median(self._costs)
        if self.result.enough_seconds is None:
            more = (trials + 2 * _MIN_CONFIRMED + 1) * self.result.trial_seconds
            self.result.enough_seconds = 10 * math.ceil((self._used + more) / 10)

    def _confirm(self) -> None:
        """Compare the best settings with the original ones, in as many rounds as time allows."""
        if not self.result.changes:
            return
        self.result.best = Result(Contestant("best", self.result.changes))
        self.result.original.outcomes.clear()
        for number in range(_MAX_CONFIRMED):
            if number >= _MIN_CONFIRMED and self._count_trials_left(0) < 2:
                break
            self._try(self.result.original)
            self._try(self.result.best)

    def _value(self, name: str) -> Any:
        """Return the current value of a setting; "auto" is the number of cores."""
        value = self.result.changes.get(name, getattr(self._options, name, None))
        return self._cores if value == "auto" else value

    @property
    def _used(self) -> float:
        """The seconds used so far."""
        return time.monotonic() - self._started

    def _has_time_to_fill(self) -> bool:
        """Return whether filling the cache, in one epoch, takes less than half the time left."""
        epoch = self._fill_samples / self.result.original.mean
        return epoch < _FILLING * (self._seconds - self._used)

    def _count_trials_left(self, reserved: int) -> int:
        """Return how many trials fit into the time left, if `reserved` more must fit as well."""
        left = self._seconds - self._used
        return max(0, int(left / statistics.median(self._costs)) - reserved)

    def _try(self, result: Result) -> None:
        """Run one trial, and add its outcome to a result."""
        used = int(min(self._seconds, self._used))
        self._tick(result.contestant.name, used, int(self._seconds))
        size = result.contestant.changes.get("batch_size", self._options.batch_size)
        batches = max(_MIN_BATCHES, math.ceil(self._images / size))
        contest = replace(self._contest, batches=batches, times_ahead=_TIMES_AHEAD)
        began = time.monotonic()
        result.outcomes.append(self._trial(result.contestant, contest))
        self._costs.append(time.monotonic() - began)


def describe_tuning(result: TuneResult, batch_size: int) -> list[str]:
    """Return the lines to print: the best settings as YAML, and the gain with its uncertainty.

    Args:
        result: The result of the search.
        batch_size: The batch size of the original settings.
    """
    names = ", ".join(result.untried)
    if result.trials:
        lines = _describe_gain(result, batch_size)
        if names:
            lines.append(f"not tried, for lack of time: {names}; --seconds gives more")
        return lines
    reason = "--keep leaves none to try"
    if result.enough_seconds is not None:
        reason = (
            f"there was no time to try any ({names}), since a trial takes "
            f"{result.trial_seconds:.1f} s here: --seconds {result.enough_seconds} tries the first"
        )
    elif result.interrupted:
        reason = "none was tried before Ctrl-C"
    return [f"Whether other settings are faster cannot be determined: {reason}."]


def _describe_gain(result: TuneResult, batch_size: int) -> list[str]:
    """Return lines that say how much faster the best settings are, or why that is uncertain."""
    gain, changes = result.gain, result.changes
    if not changes:
        return ["Nothing that was tried is faster than the settings as they are."]
    if gain is None or gain.low is None or gain.high is None:
        settings = " ".join(f"{name}={value}" for name, value in changes.items())
        return [
            f"Whether {settings} is faster cannot be determined: Ctrl-C came before it was "
            "confirmed."
        ]
    sure = (
        f"{gain.value:.2f} times as many images a second as before ({gain.low:.2f} to "
        f"{gain.high:.2f}, with 95 % confidence)"
    )
    if gain.is_vague and not result.is_certain:
        return [
            f"Whether the best that was tried is faster cannot be determined: it made {sure}. "
            "More --seconds, with nothing beside it, would tell."
        ]
    if not result.is_certain:
        return [
            "Nothing that was tried is faster beyond doubt: keep the settings as they are. "
            f"The best of them made {sure}."
        ]
    settings = yaml.safe_dump(nest_settings(changes), sort_keys=False)
    lines = [f"{sure}, with", "", *settings.splitlines(), ""]
    if CACHE_SETTING in changes:
        lines.append(
            f"The decoded cache takes up to {changes[CACHE_SETTING]['max_bytes']} of memory on "
            f"each machine, beside the batches: --keep {CACHE_SETTING} leaves it out."
        )
    if "batch_size" in changes:
        lines.append(
            "batch_size also changes what a training step sees: --keep batch_size leaves it at "
            f"{batch_size}."
        )
    return lines
