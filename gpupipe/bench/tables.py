"""What the commands print."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from gpupipe.bench.compare import Comparison, Result
from gpupipe.bench.measure import Measurement, what_runs
from gpupipe.bench.parity import Agreement
from gpupipe.bench.profile import Profile
from gpupipe.bench.statistics import ratio
from gpupipe.bench.training import Training
from gpupipe.bench.tune import Tuned
from gpupipe.loader import Loader
from gpupipe.pipeline import Pipeline
from gpupipe.step import Spec

_STATUS_STYLE = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def headline(loader: Loader) -> str:
    """One line: what will run."""
    what = what_runs(loader)
    note = f" ({what['note']})" if what["note"] else ""
    shard = what["shard"]
    rank = f", rank {shard['rank']} of {shard['world_size']}" if shard["world_size"] > 1 else ""
    return (
        f"{what['config']}{note}: {what['images']:,} images in {what['classes']:,} classes, pipeline {what['pipeline']}, "
        f"{_engine(loader)} on {what['device']}, {loader.engine.crew}, batches of {what['batch_size']}{rank}"
    )


def _engine(loader: Loader) -> str:
    instead = loader.config.loader.engine == "auto" and loader.engine.name != "dali"
    return f"{loader.engine.name} (DALI is not installed)" if instead else loader.engine.name


def measured(loader: Loader, result: Measurement) -> Table:
    """The table at the end of `gpupipe run`."""
    table = _table(loader.index.note, "", "")
    for name, value in _rows(result):
        table.add_row(name, value)
    return table


def _rows(result: Measurement) -> Iterable[tuple[str, str]]:
    if result.passes:
        count = len(result.passes)
        spread = f" ± {result.deviation:,.0f} (standard deviation of {count} passes)" if result.deviation is not None else " (one pass)"
        yield "images/s", f"{result.mean_rate:,.0f}{spread}"
        yield "input", f"{result.input_megabytes_a_second:,.1f} MB/s ({result.mean_file_bytes / 1e3:,.1f} kB a file)"
        yield "CPU", f"{result.cpu_seconds_per_thousand:.2f} s per 1,000 images"
    yield "time to first batch", f"{result.first_batch_seconds:.2f} s (after the imports)"
    yield "peak memory", f"{result.peak_memory / 2**20:,.0f} MiB"
    if result.peak_gpu_memory is not None:
        yield "peak GPU memory", f"{result.peak_gpu_memory / 2**20:,.0f} MiB (all processes on the GPU)"
    if result.skipped:
        yield "skipped", f"{result.skipped:,} samples that cannot be read"


def compared(comparison: Comparison) -> Table:
    """The table of `gpupipe compare`."""
    table = _table("; ".join(comparison.notes), *speed_columns(comparison))
    for row in speed_rows(comparison):
        table.add_row(*row)
    return table


def speed_columns(comparison: Comparison) -> list[str]:
    """The heads of its columns."""
    to = comparison.yardstick.side.name if comparison.yardstick else ""
    busy = ["GPU busy"] if _gpu_busy(comparison.measured) else []
    return ["", "images/s", f"times {to}", "first batch", "CPU s / 1,000", "peak memory", *busy]


def speed_rows(comparison: Comparison) -> Iterable[list[str]]:
    """A row for each side: mean and standard deviation, ratio and its interval, and medians of the rest."""
    for r in comparison.measured:
        spread = f" ± {r.deviation:,.0f}" if r.deviation is not None else ""
        found = comparison.ratio(r)
        times = "1" if found is None else f"{found.value:.2f}" + (f" ({found.low:.2f} to {found.high:.2f})" if found.low is not None else "")
        first, cpu = r.median(lambda o: o.first_batch_seconds), r.median(lambda o: 1000 * o.cpu_seconds / o.images)
        memory = r.median(lambda o: o.peak_memory) / 2**20
        busy = [_percent(_gpu_busy([r]))] if _gpu_busy(comparison.measured) else []
        yield [r.side.name, f"{r.mean:,.0f}{spread}", times, f"{first:.2f} s", f"{cpu:.2f}", f"{memory:,.0f} MiB", *busy]


def _gpu_busy(results: Iterable[Result]) -> list[float]:
    return [o.gpu_utilisation for r in results for o in r.outcomes if o.gpu_utilisation is not None]


def _percent(shares: list[float]) -> str:
    return f"{sum(shares) / len(shares):.0%}" if shares else "-"


def agreements(found: list[Agreement]) -> Table:
    """The table of `gpupipe parity`."""
    table = _table(
        f"DALI against torchvision, in levels of 255, over {min((a.images for a in found), default=0):,} images",
        "up to",
        "DALI on",
        "mean",
        "largest",
        "PSNR",
        "limit",
        "",
    )
    for a in found:
        limit = f"{'largest' if a.largest else 'mean'} {a.limit:g}"
        psnr = "identical" if a.most == 0 else f"{a.psnr:.1f} dB"
        table.add_row(a.step, a.device, f"{a.mean:.3f}", f"{a.most:.1f}", psnr, limit, "[green]holds[/]" if a.holds else "[bold red]FAILS[/]")
    return table


def profile_headline(profile: Profile) -> str:
    """One line: what was profiled."""
    what = profile.what
    note = f" ({what['note']})" if what["note"] else ""
    return f"{what['config']}{note}: pipeline {what['pipeline']}, {what['engine']} on {what['device']}, {what['crew']}, batches of {what['batch_size']}"


def profiled(profile: Profile) -> Table:
    """The table of `gpupipe profile`."""
    table = _table("", "up to", "images/s", "this costs, us a sample", "CPU, us a sample", "share of the time")
    whole = statistics.median(profile.whole.seconds)
    for stage, before in profile.pairs:
        costs, cpu = stage.costs(before), statistics.median(stage.cpu_costs(before))
        spread = f" ± {1e6 * statistics.stdev(costs):,.0f}" if len(costs) > 1 else ""
        cost = statistics.median(costs)
        table.add_row(stage.name, f"{stage.rate:,.0f}", f"{1e6 * cost:,.0f}{spread}", f"{1e6 * cpu:,.0f}", f"{cost / whole:.0%}")
    if any(statistics.median(s.costs(b)) < -0.01 * whole for s, b in profile.pairs):
        table.caption, table.caption_justify = "Less than 0: with it, the steps before have less to do, or are done together with it.", "left"
    return table


def training(found: Training | None, ceiling: float | None) -> Iterable[str]:
    """How much of training waits for data, or, without a training step, how fast a loop could be at most."""
    if found is None:
        yield f"A loop over batches that are kept: {ceiling or 0:,.0f} images/s. --step-ms or --model tells how much of a training step is waiting."
        return
    fed, kept = statistics.fmean(found.fed), statistics.fmean(found.replayed)
    waiting = found.waiting
    sure = f" ({waiting.low:.0%} to {waiting.high:.0%}, with 95 % confidence)" if waiting.low is not None and waiting.high is not None else ""
    yield f"Training ({found.what}): {fed:,.0f} images/s; on kept batches, without loading, {kept:,.0f}."
    yield f"Waiting for data: {max(0.0, waiting.value):.0%} of step time{sure}."


def trials(found: Tuned) -> Table:
    """What `gpupipe tune` tried."""
    table = _table("", "tried", "images/s, each round", "times the first")
    for holder, *rivals in found.trials:
        for result in (holder, *rivals):
            times = "1" if result is holder else f"{ratio(result.rates, holder.rates).value:.2f}"
            table.add_row(result.side.name, ", ".join(f"{r:,.0f}" for r in result.rates), times)
        table.add_section()
    return table


def steps(pipeline: Pipeline) -> Table:
    """The steps of a pipeline with what comes out of each."""
    table = _table(f"pipeline {pipeline.name}", "step", "parameters", "makes", "dtype", "layout")
    for entry in pipeline.entries:
        table.add_row(entry.key, _parameters(entry.step.model_dump()), _shape(entry.made), entry.made.dtype, "HWC")
    return table


def _shape(spec: Spec) -> str:
    return "(" + ", ".join("?" if n is None else str(n) for n in (spec.height, spec.width, spec.channels)) + ")"


def _parameters(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={_short(v)}" for k, v in values.items() if v is not None)


def _short(value: Any) -> str:
    return "[" + ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value) + "]" if isinstance(value, tuple) else str(value)


def lowering(device: str, operators: Iterable[tuple[str, str, tuple[str, ...]]]) -> Table:
    """The operators that run, and the steps whose work each does: more than one where they were fused."""
    table = _table(f"on the {device}", "operator", "device", "does the work of")
    for op, place, names in operators:
        table.add_row(op, place, " + ".join(names) or ("reading" if op.startswith(("io.", "torch.")) else "layout"))
    return table


def findings(rows: Iterable[Any]) -> Table:
    """What `gpupipe doctor` found."""
    table = _table("", "", "found", "status", "what to do")
    for row in rows:
        table.add_row(row.subject, row.found, f"[{_STATUS_STYLE[row.status]}]{row.status}[/]", row.advice)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table
