"""The tables and lines that `gpupipe profile` and `gpupipe tune` print."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from rich.table import Table

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
