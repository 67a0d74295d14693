"""Compares the engine of a config with torch's DataLoader in a given time: `gpupipe try`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from gpupipe.bench.compare import disturbance, list_contestants, run_contest
from gpupipe.bench.comparison import Comparison, Result
from gpupipe.bench.contestant import Contest
from gpupipe.bench.measure import Tick
from gpupipe.config import Config
from gpupipe.engines import registry
from gpupipe.loading.assembly import resolve
from gpupipe.runtime.devices import gpu_count

_FIRST_BATCHES, _TIMES_AHEAD = 12, 2
"""A turn has this many batches at least, and twice those that a contestant makes ahead."""
_TURN_SECONDS = 2.0
"""Seconds of measuring in a turn, after the first round, which shows how fast a contestant is."""
_MIN_ROUNDS, _MAX_ROUNDS = 2, 6


def compare_within(
    config: Config, path: str, cores: Sequence[int], seconds: float, tick: Tick
) -> Comparison:
    """Compare the engine of a config with a DataLoader of one worker per core.

    There are two rounds at least, and six at most; no round begins that would end too late.

    Args:
        config: The config to load.
        path: The path of its file.
        cores: The numbers of the cores to run on.
        seconds: How long the comparison may take.
        tick: Called before each turn.

    Raises:
        EngineError: If a contestant fails.
    """
    started = monotonic()
    engines = dict.fromkeys([resolve(config).engine.name, registry.find_reference().name])
    contestants, notes = list_contestants(config, [len(cores)], gpu_count(), list(engines))
    contest = Contest(path, (), {}, cores, _FIRST_BATCHES, 2, False, _TIMES_AHEAD)
    results, longest, rounds = [Result(c) for c in contestants], 0.0, 0
    while rounds < _MAX_ROUNDS:
        begun = monotonic()
        if rounds >= _MIN_ROUNDS and begun - started + longest > seconds:
            break
        rounds += 1
        for number, result in enumerate(results):
            tick(f"round {rounds}: {result.contestant.name}", number, len(results))
            result.outcomes.append(run_contest(result.contestant, _set_batches(contest, result)))
        longest = max(longest, monotonic() - begun)
    tick("", len(results), len(results))
    others = max(outcome.others for result in results for outcome in result.outcomes)
    return Comparison(results, contest, rounds, [*notes, *disturbance(others)])


def _set_batches(contest: Contest, result: Result) -> Contest:
    """Return the contest with as many batches as a contestant makes in _TURN_SECONDS."""
    if not result.outcomes:
        return contest
    last = result.outcomes[-1]
    return replace(contest, batches=max(2, math.ceil(_TURN_SECONDS * last.batches / last.seconds)))
