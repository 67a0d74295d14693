"""Compares engines, such as DALI and torch's DataLoader: same cores, samples and draws.

Each turn of a contestant runs in a fresh process. The contestants take turns, round after round, so
that a drift of the machine affects all of them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

from gpupipe.bench.against import CHECK
from gpupipe.bench.comparison import DISTURBED, Comparison, Contestant, Result
from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.measure import Tick, take_turns
from gpupipe.bench.memory import ADDED_UP, PSS
from gpupipe.config import Config
from gpupipe.engines import registry
from gpupipe.engines.base import Engine
from gpupipe.errors import EngineError
from gpupipe.runtime.process import run_python
from gpupipe.runtime.registry import AUTO

_QUIET = 0.15
_SIMILAR = 0.2
"""Batches of an epoch's end are smaller: a mean that differs by less is of the same batch size."""


@runtime_checkable
class Comparable(Protocol):
    """An engine class that `gpupipe compare` measures with several settings.

    Other engines are measured once, with the config's settings.
    """

    def contestants(self, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        """Return a dict from each contestant's title to its settings of `loader:`. A class method.

        Args:
            gpus: How many GPUs there are.
            workers: The numbers of worker processes to try.
        """


def list_contestants(
    config: Config, workers: Sequence[int], gpus: int, engines: Sequence[str]
) -> tuple[list[Contestant], list[str]]:
    """Return the contestants to compare, and notes about engines that are left out.

    Args:
        config: The config to load.
        workers: The numbers of DataLoader workers to try.
        gpus: How many GPUs there are.
        engines: The names of the engines to compare, from `comparable_engines`.

    Raises:
        EngineError: If no contestant is left.
    """
    chosen: list[Contestant] = []
    notes: list[str] = []
    for name in engines:
        engine, title = registry.find(name), registry.get_title(name)
        lacking = [
            f"{entry.key} ({entry.where})"
            for entry in config.pipeline.entries
            if issubclass(engine, Engine) and not engine.can_run(entry, config.loader.device)
        ]
        if lacking:
            notes.append(
                f"no lowering for {title}: {', '.join(lacking)}; it could not do the same work, "
                "and is left out"
            )
            continue
        if engine.traits.comparison_note:
            notes.append(engine.traits.comparison_note)
        if not gpus and set(engine.traits.backends) == {"cpu", "gpu"}:
            notes.append(f"no GPU here: {title} is measured on its CPU back end alone")
        measured: dict[str, dict[str, Any]] = {name: {}}
        if isinstance(engine, Comparable):
            measured = engine.contestants(gpus, workers)
        chosen += [
            Contestant(title, {"engine": name} | settings, settings.get("workers"))
            for title, settings in measured.items()
        ]
    notes += [
        f"{registry.get_title(name)} is not installed, and is left out"
        for name in registry.list_automatic()
        if name not in engines and not registry.is_installed(name)
    ]
    if not chosen:
        raise EngineError(f"there is nothing to compare: {'; '.join(notes)}")
    return chosen, notes


def comparable_engines(own: str) -> list[str]:
    """Return the engines to compare: the config's, and the installed ones that `auto` may choose.

    Args:
        own: The config's `loader.engine`.
    """
    installed = list(filter(registry.is_installed, registry.list_automatic()))
    return installed if own in (AUTO, *installed) else [own, *installed]


def compare(
    contestants: Sequence[Contestant],
    contest: Contest,
    repeats: int,
    tick: Tick,
    notes: Sequence[str] = (),
    command: str = "",
) -> Comparison:
    """Run `repeats` rounds of all contestants, and return their outcomes.

    Ctrl-C ends the comparison and keeps the outcomes so far.

    Args:
        contestants: The contestants, in the order of their turns.
        contest: The work of each contestant in each round.
        repeats: The number of rounds.
        tick: Called before each turn.
        notes: Notes for the reader, such as engines that were left out.
        command: The command line, quoted for a shell.

    Raises:
        EngineError: If a contestant fails.
    """
    results = [Result(contestant) for contestant in contestants]
    interrupted = False
    try:
        for number in take_turns([contestant.name for contestant in contestants], repeats, tick):
            results[number].outcomes.append(run_contest(contestants[number], contest))
    except KeyboardInterrupt:
        interrupted = True
    outcomes = [outcome for result in results for outcome in result.outcomes]
    all_notes = [*[o.note for o in outcomes if o.note][:1], *notes]
    if any(o.peak_memory_kind != PSS for o in outcomes):
        all_notes.append(f"peak memory is {ADDED_UP}")
    for result in results:
        if result.contestant.against and result.outcomes:
            all_notes += _describe_own_work(result, outcomes)
    all_notes += disturbance(max((o.others for o in outcomes), default=0.0))
    return Comparison(results, contest, repeats, all_notes, command, interrupted)


def _describe_own_work(result: Result, outcomes: Sequence[ContestOutcome]) -> list[str]:
    """Return notes about a loader of the user's: its pixels, and its batches if they differ."""
    name = result.contestant.name
    notes = [f"{name} decides its own work, order and draws: its pixels are not compared"]
    size = result.outcomes[0].images / result.outcomes[0].batches
    expected = next((o.data["batch_size"] for o in outcomes if o.data), size)
    if abs(size - expected) > _SIMILAR * expected:
        notes.append(
            f"{name} delivers batches of {size:.0f}, and the config says {expected}: compare "
            "images/s, and not the time for 100 batches"
        )
    return notes


def disturbance(cores: float) -> list[str]:
    """Return a warning if other processes used at least 0.15 of one CPU core; else an empty list.

    Args:
        cores: The largest number of cores that other processes kept busy in a measurement.
    """
    if cores < _QUIET:
        return []
    return [
        f"{DISTURBED}: other processes kept up to {cores:.1f} of these cores busy meanwhile: "
        "measure again with nothing beside it"
    ]


def run_contest(contestant: Contestant, contest: Contest) -> ContestOutcome:
    """Measure a contestant once, in a fresh process; raise EngineError if it fails."""
    return ContestOutcome(**_ask(contestant, contest))


def check_contestant(contestant: Contestant, contest: Contest) -> None:
    """Import a function of the user's in a fresh process; raise EngineError if it is not there."""
    _ask(contestant, contest, CHECK)


def _ask(contestant: Contestant, contest: Contest, *arguments: str) -> dict[str, Any]:
    """Return what the process of a contestant answers; raise EngineError if it fails."""
    changes = contest.changes | contestant.changes
    request = asdict(contest) | {"changes": changes, "against": contestant.against}
    module = "against" if contestant.against else "contestant"
    command = "-W", "ignore", "-m", f"gpupipe.bench.{module}", *arguments
    process = run_python(*command, stdin=json.dumps(request).encode())
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip()[-2000:]
        raise EngineError(f"{contestant.name} ended with exit code {process.returncode}: {reason}")
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    if "error" in answer:
        raise EngineError(f"{contestant.name}: {answer['error']}")
    return answer
