"""Builds the tables and lines that the commands print.

The table of `gpupipe profile` is in profile_report.py. Commands that measure nothing also import
this module, for `new_table`. It therefore imports no slow module at its head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from gpupipe.bench.layout import WordTable
from gpupipe.errors import counted, shown

if TYPE_CHECKING:
    from gpupipe.batch_stage.stage import BatchStage
    from gpupipe.bench.annotation_checks import AnnotationCount
    from gpupipe.bench.comparison import Comparison, Ratio, Result
    from gpupipe.bench.measure import Measurement
    from gpupipe.bench.parity import Agreement
    from gpupipe.bench.tune import TuneResult
    from gpupipe.loader import Loader
    from gpupipe.pipeline.pipeline import Pipeline
    from gpupipe.pipeline.step import Spec

_STATUS_STYLE = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def new_table(title: str, *columns: str, rows: Iterable[Sequence[str]] = ()) -> WordTable:
    """Return a table of `rows` in the style that all tables share."""
    table = WordTable(title, *columns)
    for row in rows:
        table.add_row(*row)
    return table


def headline(loader: Loader) -> str:
    """Return the first line of `gpupipe run`: data, pipeline, engine, batch size and rank."""
    from gpupipe.bench.measure import describe_loader
    from gpupipe.engines import registry

    facts = describe_loader(loader)
    data = counted(facts["images"], "image") if facts["images"] else facts["data"]
    if facts["classes"]:
        data += f" in {counted(facts['classes'], 'class', 'classes')}"
    if missing := registry.list_passed_over(loader.config, facts["engine"]):
        facts["engine"] += f" ({' and '.join(missing)} is not installed)"
    shard = facts["shard"]
    rank = f", rank {shard['rank']} of {shard['world_size']}" if shard["world_size"] > 1 else ""
    return f"{describe_work(facts, f'{data}, ')}{rank}"


def describe_work(facts: Mapping[str, Any], data: str = "") -> str:
    """Return a line about a config, its pipeline and its engine.

    Args:
        facts: The description of the loader, from `describe_loader`.
        data: Text about the samples, to insert before the pipeline.
    """
    note = f" ({facts['note']})" if facts["note"] else ""
    mixing = f"batch {' + '.join(facts['batch_stage'])}, " if facts["batch_stage"] else ""
    return (
        f"{facts['config']}{note}: {data}pipeline {facts['pipeline']}, {mixing}{facts['engine']} "
        f"on {facts['device']}, {facts['parallelism_with_unit']}, batches of {facts['batch_size']}"
    )


def measurement_table(result: Measurement) -> WordTable:
    """Return the table at the end of `gpupipe run`."""
    return new_table("", "", "", rows=measurement_rows(result))


def measurement_rows(result: Measurement) -> Iterator[tuple[str, str]]:
    """Yield name and value of each row of the table of `gpupipe run`."""
    from gpupipe.bench.memory import ADDED_UP, PSS

    if result.too_short:
        yield "images/s", f"cannot be determined: {result.too_short}"
    elif result.passes:
        size = counted(result.passes[0].batches, "batch", "batches")
        spread = f" (one pass of {size})"
        if result.deviation is not None:
            passes = f"{len(result.passes)} passes of {size}"
            spread = f" ± {result.deviation:,.0f} (standard deviation of {passes})"
        yield "images/s", f"{result.mean:,.0f}{spread}"
        if result.mean_file_bytes:  # unknown if a server reads the files
            size = f"{result.mean_file_bytes / 1e3:,.1f} kB a file"
            yield "input", f"{result.input_megabytes_a_second:,.1f} MB/s ({size})"
        yield "CPU", f"{result.cpu_seconds_per_thousand:.2f} s per 1,000 images"
    yield "time to first batch", f"{result.first_batch_seconds:.2f} s (after the imports)"
    how = "" if result.peak_memory_kind == PSS else f" ({ADDED_UP})"
    yield "peak memory", f"{result.peak_memory / 2**20:,.0f} MiB{how}"
    if result.peak_gpu_memory is not None:
        used = f"{result.peak_gpu_memory / 2**20:,.0f} MiB"
        yield "peak GPU memory", f"{used} (all processes on the GPU)"
    if result.skipped:
        yield "skipped", f"{counted(result.skipped, 'sample')} that cannot be read"


def comparison_table(comparison: Comparison) -> WordTable:
    """Return the table of `gpupipe compare`."""
    to = comparison.baseline.contestant.name if comparison.baseline else ""
    columns = speed_columns(comparison, f"times {to}")
    return new_table("; ".join(comparison.notes), *columns, rows=speed_rows(comparison))


def speed_columns(comparison: Comparison, ratio: str) -> list[str]:
    """Return the column titles of `speed_rows`; `ratio` is the title for ratios to the baseline."""
    busy = ["GPU busy"] if _gpu_busy(comparison.measured) else []
    return ["", "images/s", ratio, "first batch", "CPU s / 1,000", "peak memory", *busy]


def speed_rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yield one row per contestant: mean rate, ratio to the baseline, then medians over rounds."""
    has_gpu = bool(_gpu_busy(comparison.measured))
    for r in comparison.measured:
        spread = f" ± {r.deviation:,.0f}" if r.deviation is not None else ""
        to_baseline, shares = comparison.ratio(r), _gpu_busy([r])
        busy = f"{sum(shares) / len(shares):.0%}" if shares else "-"
        yield [
            r.contestant.name,
            f"{r.mean:,.0f}{spread}",
            "1" if to_baseline is None else _format_ratio(to_baseline),
            f"{r.median(lambda o: o.first_batch_seconds):.2f} s",
            f"{r.median(lambda o: 1000 * o.cpu_seconds / o.images):.2f}",
            f"{r.median(lambda o: o.peak_memory) / 2**20:,.0f} MiB",
            *([busy] if has_gpu else []),
        ]


def _format_ratio(ratio: Ratio) -> str:
    from gpupipe.bench.comparison import format_interval

    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    is_unknown = ratio.is_vague and not ratio.is_certain
    times = "cannot be determined" if is_unknown else f"{ratio.value:.2f}"
    return f"{times} ({format_interval(ratio)})"


def _gpu_busy(results: Iterable[Result]) -> list[float]:
    return [o.gpu_utilisation for r in results for o in r.outcomes if o.gpu_utilisation is not None]


def trials_table(tuning: TuneResult) -> WordTable:
    """Return the table of the trials of `gpupipe tune`."""
    from gpupipe.bench.comparison import ratio

    table = new_table("", "tried", "images/s, each round", "times the first")
    for holder, *rivals in tuning.trials:
        for result in (holder, *rivals):
            times = "1" if result is holder else f"{ratio(result.rates, holder.rates).value:.2f}"
            rates = ", ".join(f"{rate:,.0f}" for rate in result.rates)
            table.add_row(result.contestant.name, rates, times)
        table.add_section()
    return table


def parity_table(agreements: Sequence[Agreement], engine: str) -> WordTable:
    """Return the table of `gpupipe parity`; `engine` is the title of the compared engine.

    If all rows are of one device, the title names it: so the table is under 80 columns wide.
    """
    images, devices = min((a.images for a in agreements), default=0), {a.device for a in agreements}
    only = f" on {devices.pop()}" if len(devices) == 1 else ""
    first, device, *others = parity_columns(engine)
    table = new_table(
        f"{engine}{only} against torchvision, in levels of 255, over {counted(images, 'image')}",
        *([first, *others] if only else [first, device, *others]),
    )
    for a, (step, place, *cells, verdict) in zip(agreements, parity_rows(agreements), strict=True):
        colour = "green" if a.holds else "bold red"
        table.add_row(step, *(() if only else (place,)), *cells, f"[{colour}]{verdict}[/]")
    return table


def parity_columns(engine: str) -> tuple[str, ...]:
    """Return the column titles of `parity_rows`; `engine` is the title of the compared engine."""
    return ("up to", f"{engine} on", "mean", "largest", "PSNR", "limit", "result")


def parity_rows(agreements: Iterable[Agreement]) -> Iterator[list[str]]:
    """Yield one row per agreement, in the order of parity_columns."""
    for a in agreements:
        psnr = "identical" if a.max == 0 else "" if math.isnan(a.psnr) else f"{a.psnr:.1f} dB"
        limit = f"{'largest' if a.limits_max else 'mean'} ≤ {a.limit:g}"
        verdict = "holds" if a.holds else "FAILS"
        yield [a.step, a.device, f"{a.mean:.3f}", f"{a.max:.1f}", psnr, limit, verdict]


def steps_table(pipeline: Pipeline) -> WordTable:
    """Return the table of a pipeline's steps, with shape, dtype and layout of each output."""
    table = new_table(f"pipeline {pipeline.name}", "step", "parameters", "makes", "dtype", "layout")
    for entry in pipeline.entries:
        image = pipeline.is_image_file(entry.field)
        table.add_row(
            entry.key,
            _parameters(entry.step.model_dump()),
            _shape(entry.output_spec, image),
            entry.output_spec.dtype,
            "HWC" if image else entry.output_spec.layout,
        )
    return table


def batch_table(stage: BatchStage) -> WordTable:
    """Return the table of the batch stage: each step with the fields that it works on."""
    table = new_table("batch, in torch on the loader's device", "step", "parameters", "works on")
    for entry in stage.entries:
        table.add_row(
            entry.key,
            _parameters(entry.step.model_dump(mode="json", exclude_none=True)),
            ", ".join([*entry.layouts, "label"]),
        )
    return table


def _shape(spec: Spec, image: bool) -> str:
    """Format a shape in DALI's order: (H, W, C) for an image."""
    shape = (spec.height, spec.width, spec.channels) if image else spec.shape
    return f"({', '.join('?' if n is None else str(n) for n in shape)})"


def _parameters(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}: {_short(v)}" for k, v in values.items() if v is not None)


def _short(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_short, value))}]"
    if isinstance(value, dict):
        return f"{{{_parameters(value)}}}"
    if isinstance(value, float):
        return f"{value:g}"
    return shown(value) if isinstance(value, bool) or value is None else str(value)


def lowering_table(device: str, operators: Iterable[tuple[str, str, tuple[str, ...]]]) -> WordTable:
    """Return a table with a row per operator: its name, its device, the steps it implements."""
    table = new_table(f"on the {device}", "operator", "device", "does the work of")
    for op, op_device, names in operators:
        other = "reading" if op.startswith(("io.", "torch.", "dataset.")) else "layout"
        table.add_row(op, op_device, " + ".join(names) or other)
    return table


def annotations_table(rows: Iterable[AnnotationCount]) -> WordTable:
    """Return the table of `gpupipe check --annotations`."""
    cells = ([row.what, f"{row.number:,}", escape(row.first)] for row in rows)
    return new_table("", "annotations", "count", "first", rows=cells)


def check_results_table(rows: Iterable[Any]) -> WordTable:
    """Return the table of `gpupipe doctor`."""
    table = new_table("", "", "found", "status", "what to do")
    for row in rows:
        table.add_row(
            escape(row.subject),
            escape(row.observation),
            f"[{_STATUS_STYLE[row.status]}]{row.status}[/]",
            escape(row.advice),
        )
    return table
