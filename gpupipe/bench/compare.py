"""Compares engines, such as DALI and torch's DataLoader: same cores, samples and draws.

Every side runs in a fresh process. The sides take turns, round after round, so that a drift of the
machine affects all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

from gpupipe.bench.comparison import DISTURBED, Comparison, Result, Side
from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.memory import ADDED_UP, PSS
from gpupipe.config import Config
from gpupipe.engines import registry
from gpupipe.engines.base import Engine
from gpupipe.errors import EngineError
from gpupipe.runtime import child_process
from gpupipe.runtime.registry import AUTO

_QUIET = 0.15
Tick = Callable[[str, int, int], None]
"""Called before each contest with its description, the contests done, and the total."""


@runtime_checkable
class Comparable(Protocol):
    """The class of an engine that is not just measured once, with the config's settings."""

    def contestants(self, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        """Return what `gpupipe compare` measures: settings of `loader:` by title. A class method.

        Args:
            gpus: How many GPUs there are.
            workers: The numbers of worker processes to try.
        """


def sides(
    config: Config, workers: Sequence[int], gpus: int, engines: Sequence[str]
) -> tuple[list[Side], list[str]]:
    """Return the sides to compare, and notes about those that are left out.

    Args:
        config: The config to load.
        workers: The numbers of DataLoader workers to try.
        gpus: How many GPUs there are.
        engines: The names of the engines to compare, see `comparable_engines`.

    Raises:
        EngineError: If no side is left.
    """
    chosen: list[Side] = []
    notes: list[str] = []
    for name in engines:
        engine = registry.find(name)
        lacking = [
            entry
            for entry in config.pipeline.entries
            if issubclass(engine, Engine) and not engine.can_run(entry, config.loader.device)
        ]
        if lacking:
            named = ", ".join(f"{e.key} ({e.where})" for e in lacking)
            notes.append(
                f"no lowering for {registry.title(name)}: {named}; it could not do the same work, "
                "and is left out"
            )
            continue
        if engine.traits.comparison_note:
            notes.append(engine.traits.comparison_note)
        if not gpus and set(engine.traits.backends) == {"cpu", "gpu"}:
            title = registry.title(name)
            notes.append(f"no GPU here: {title} is measured on its CPU back end alone")
        measured: dict[str, dict[str, Any]] = {name: {}}
        if isinstance(engine, Comparable):
            measured = engine.contestants(gpus, workers)
        chosen += [
            Side(title, {"engine": name} | settings, settings.get("workers"))
            for title, settings in measured.items()
        ]
    for name in registry.list_automatic():
        if name not in engines:
            notes.append(f"{registry.title(name)} is not installed, and is left out")
    if not chosen:
        raise EngineError(f"there is nothing to compare: {'; '.join(notes)}")
    return chosen, notes


def comparable_engines(own: str) -> list[str]:
    """Return the names of the engines to compare: those that `auto` may take, and the config's.

    Args:
        own: The config's `loader.engine`.
    """
    installed = list(filter(registry.is_installed, registry.list_automatic()))
    return installed if own in (AUTO, *installed) else [own, *installed]


def compare(
    sides: Sequence[Side],
    contest: Contest,
    repeats: int,
    tick: Tick,
    notes: Sequence[str] = (),
    command: str = "",
) -> Comparison:
    """Run `repeats` rounds of all sides, and return their outcomes.

    Ctrl-C ends the comparison and keeps what was measured.

    Args:
        sides: The sides, in the order of their turns.
        contest: The work of each side in each round.
        repeats: The number of rounds.
        tick: Called before each contest.
        notes: What a reader must know, such as sides that were left out.
        command: The command line, quoted for a shell.

    Raises:
        EngineError: If a side fails.
    """
    results = [Result(side) for side in sides]
    interrupted = False
    total = repeats * len(results)
    try:
        for number in range(total):
            result = results[number % len(results)]
            tick(
                f"round {number // len(results) + 1} of {repeats}: {result.side.name}",
                number,
                total,
            )
            result.outcomes.append(run_contest(result.side, contest))
        tick("", total, total)
    except KeyboardInterrupt:
        interrupted = True
    outcomes = [outcome for result in results for outcome in result.outcomes]
    all_notes = [*_data_note(outcomes), *notes, *_memory_note(outcomes)]
    all_notes += disturbance(max((o.others for o in outcomes), default=0.0))
    return Comparison(results, contest, repeats, all_notes, command, interrupted)


def _data_note(outcomes: Sequence[ContestOutcome]) -> list[str]:
    """Return what a side says about its data, if any says something."""
    return [o.note for o in outcomes if o.note][:1]


def _memory_note(outcomes: Sequence[ContestOutcome]) -> list[str]:
    """Return how the peak memory was measured, if not as PSS."""
    return (
        [f"peak memory is {ADDED_UP}"] if any(o.peak_memory_kind != PSS for o in outcomes) else []
    )


def disturbance(cores: float) -> list[str]:
    """Return a warning if other processes kept more than 0.15 of the cores busy; else nothing.

    Args:
        cores: The most cores that other processes kept busy during a measurement.
    """
    if cores < _QUIET:
        return []
    return [
        f"{DISTURBED}: other processes kept up to {cores:.1f} of these cores busy meanwhile: "
        "measure again with nothing beside it"
    ]


def run_contest(side: Side, contest: Contest) -> ContestOutcome:
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
