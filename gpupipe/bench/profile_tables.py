"""The tables and lines that `gpupipe profile` and `gpupipe tune` print."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import yaml
from rich.table import Table

from gpupipe.bench.cache_candidate import SETTING
from gpupipe.bench.profile import Profile
from gpupipe.bench.statistics import ratio
from gpupipe.bench.table_style import new_table
from gpupipe.bench.tables import describe_batch_stage
from gpupipe.bench.training import Training
from gpupipe.bench.tune import TuneResult


def headline(profile: Profile) -> str:
    """Return one line that says what was profiled."""
    what = profile.what
    note = f" ({what['note']})" if what["note"] else ""
    return (
        f"{what['config']}{note}: pipeline {what['pipeline']}, "
        f"{describe_batch_stage(what['batch_stage'])}{what['engine']} on "
        f"{what['device']}, {what['parallelism_with_unit']}, batches of {what['batch_size']}"
    )


def profile_table(profile: Profile) -> Table:
    """Return the table of `gpupipe profile`."""
    table = new_table(
        "", "up to", "images/s", "this costs, us a sample", "CPU, us a sample", "share of the time"
    )
    whole = statistics.median(profile.whole.seconds)
    for stage, before in profile.pairs:
        costs, cpu = stage.costs(before), statistics.median(stage.cpu_costs(before))
        spread = f" ± {1e6 * statistics.stdev(costs):,.0f}" if len(costs) > 1 else ""
        cost = statistics.median(costs)
        table.add_row(
            stage.name,
            f"{stage.rate:,.0f}",
            f"{1e6 * cost:,.0f}{spread}",
            f"{1e6 * cpu:,.0f}",
            f"{cost / whole:.0%}",
        )
    if any(statistics.median(s.costs(b)) < -0.01 * whole for s, b in profile.pairs):
        table.caption, table.caption_justify = (
            "Less than 0: with it, the steps before have less to do, or are done together with it.",
            "left",
        )
    if not profile.is_by_parts:
        table.caption = (
            f"Engine {profile.what['engine']} cannot read alone, or run its steps without "
            "delivery: only whole batches are timed."
        )
        table.caption_justify = "left"
    return table


def describe_training(training: Training | None, ceiling: float | None) -> Iterable[str]:
    """Yield how much of a training step waits for data.

    Without a training step (`training` is None), yield the highest rate that a loop could reach.
    """
    if training is None:
        yield (
            f"A loop over batches that are kept: {ceiling or 0:,.0f} images/s. --step-ms or "
            "--model tells how much of a training step is waiting."
        )
        return
    fed, kept = statistics.fmean(training.fed), statistics.fmean(training.replayed)
    waiting = training.waiting
    sure = (
        f" ({waiting.low:.0%} to {waiting.high:.0%}, with 95 % confidence)"
        if waiting.low is not None and waiting.high is not None
        else ""
    )
    yield (
        f"Training ({training.what}): {fed:,.0f} images/s; on kept batches, without loading, "
        f"{kept:,.0f}."
    )
    if training.is_vague:
        yield (
            f"Waiting for data: cannot be determined, the rounds differ too much{sure}. "
            "More --rounds "
            "or --seconds, with nothing beside it, would tell."
        )
        return
    yield (
        f"Waiting for data: {max(0.0, waiting.value):.0%} of step time{sure}. Accelerator "
        f"utilisation (AU of MLPerf Storage): {training.accelerator_utilisation:.0%}."
    )


def trials_table(tuning: TuneResult) -> Table:
    """Return the table of the trials of `gpupipe tune`."""
    table = new_table("", "tried", "images/s, each round", "times the first")
    for holder, *rivals in tuning.trials:
        for result in (holder, *rivals):
            times = "1" if result is holder else f"{ratio(result.rates, holder.rates).value:.2f}"
            table.add_row(result.side.name, ", ".join(f"{r:,.0f}" for r in result.rates), times)
        table.add_section()
    return table


def describe_tuning(result: TuneResult, batch_size: int) -> list[str]:
    """Return the settings to use, as YAML, and how certain the gain is.

    Args:
        result: The result of the search.
        batch_size: The batch size of the original settings.
    """
    tail = (
        [f"not tried, for lack of time: {', '.join(result.untried)}; --seconds gives more"]
        if result.untried
        else []
    )
    gain = result.gain
    if not result.trials:
        return [f"Whether other settings are faster cannot be determined: {_why_untried(result)}."]
    if gain is None or gain.low is None or gain.high is None:
        if result.changes:
            return [
                f"Whether {_format_changes(result.changes)} is faster cannot be determined: "
                "Ctrl-C came before it was confirmed.",
                *tail,
            ]
        return ["Nothing that was tried is faster than the settings as they are.", *tail]
    sure = (
        f"{gain.value:.2f} times as many images a second as before ({gain.low:.2f} to "
        f"{gain.high:.2f}, with 95 % confidence)"
    )
    if gain.is_vague and not result.is_certain:
        return [
            f"Whether the best that was tried is faster cannot be determined: it made {sure}. "
            "More --seconds, with nothing beside it, would tell.",
            *tail,
        ]
    if not result.is_certain:
        return [
            "Nothing that was tried is faster beyond doubt: keep the settings as they are. "
            f"The best of them made {sure}.",
            *tail,
        ]
    lines = [
        f"{sure}, with",
        "",
        *yaml.safe_dump(_nest(result.changes), sort_keys=False).splitlines(),
        "",
    ]
    if SETTING in result.changes:
        size = result.changes[SETTING]["max_bytes"]
        lines.append(
            f"The decoded cache takes up to {size} of memory on each machine, beside the batches: "
            f"--keep {SETTING} leaves it out."
        )
    if "batch_size" in result.changes:
        lines.append(
            "batch_size also changes what a training step sees: --keep batch_size leaves "
            f"it at {batch_size}."
        )
    return lines + tail


def _nest(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes as a config has them."""
    loader = {name: value for name, value in changes.items() if name != SETTING}
    nested: dict[str, Any] = {"loader": loader} if loader else {}
    if SETTING in changes:
        section, _, name = SETTING.partition(".")
        nested[section] = {name: dict(changes[SETTING])}
    return nested


def _format_changes(changes: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in changes.items())


def _why_untried(result: TuneResult) -> str:
    if result.enough_seconds is not None:
        names = ", ".join(result.untried)
        return (
            f"there was no time to try any ({names}), since a trial takes "
            f"{result.trial_seconds:.1f} s here: --seconds {result.enough_seconds} tries the first"
        )
    return "none was tried before Ctrl-C" if result.interrupted else "--keep leaves none to try"
