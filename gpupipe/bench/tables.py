"""The tables and lines that the commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from gpupipe.batch_stage.stage import BatchStage
from gpupipe.bench.comparison import Comparison, Result, format_interval
from gpupipe.bench.measure import Measurement, describe_loader
from gpupipe.bench.memory import ADDED_UP, PSS
from gpupipe.bench.parity import Agreement
from gpupipe.bench.statistics import Ratio
from gpupipe.bench.table_style import new_table
from gpupipe.engines import registry
from gpupipe.errors import counted
from gpupipe.loader import Loader
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec

_STATUS_STYLE = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def headline(loader: Loader) -> str:
    """Return one line that says what will run."""
    what = describe_loader(loader)
    note = f" ({what['note']})" if what["note"] else ""
    shard = what["shard"]
    rank = f", rank {shard['rank']} of {shard['world_size']}" if shard["world_size"] > 1 else ""
    return (
        f"{what['config']}{note}: {counted(what['images'], 'image')} in "
        f"{counted(what['classes'], 'class', 'classes')}, "
        f"pipeline {what['pipeline']}, {describe_batch_stage(what['batch_stage'])}"
        f"{_engine(loader)} on {what['device']}, {loader.engine.traits.parallelism_with_unit}, "
        f"batches of "
        f"{what['batch_size']}{rank}"
    )


def describe_batch_stage(steps: Sequence[str]) -> str:
    """Return the part of a headline about steps on whole batches, "" if there are none."""
    return f"batch {' + '.join(steps)}, " if steps else ""


def _engine(loader: Loader) -> str:
    name = loader.engine.name
    missing = registry.passed_over(loader.config, name)
    return f"{name} ({' and '.join(missing)} is not installed)" if missing else name


def measurement_table(loader: Loader, result: Measurement) -> Table:
    """Return the table at the end of `gpupipe run`."""
    table = new_table(loader.index.note, "", "")
    for name, value in _rows(result):
        table.add_row(name, value)
    return table


def _rows(result: Measurement) -> Iterable[tuple[str, str]]:
    if result.too_short:
        yield "images/s", f"cannot be determined: {result.too_short}"
    elif result.passes:
        size = counted(result.passes[0].batches, "batch", "batches")
        several = (
            f" ± {result.deviation:,.0f} (standard deviation of {len(result.passes)} passes "
            f"of {size})"
            if result.deviation is not None
            else ""
        )
        spread = several or f" (one pass of {size})"
        yield "images/s", f"{result.mean_rate:,.0f}{spread}"
        if result.mean_file_bytes:  # unknown if a server reads the files
            yield (
                "input",
                f"{result.input_megabytes_a_second:,.1f} MB/s "
                f"({result.mean_file_bytes / 1e3:,.1f} kB a file)",
            )
        yield "CPU", f"{result.cpu_seconds_per_thousand:.2f} s per 1,000 images"
    yield "time to first batch", f"{result.first_batch_seconds:.2f} s (after the imports)"
    yield (
        "peak memory",
        f"{result.peak_memory / 2**20:,.0f} "
        f"MiB{'' if result.peak_memory_kind == PSS else f' ({ADDED_UP})'}",
    )
    if result.peak_gpu_memory is not None:
        yield (
            "peak GPU memory",
            f"{result.peak_gpu_memory / 2**20:,.0f} MiB (all processes on the GPU)",
        )
    if result.skipped:
        yield "skipped", f"{counted(result.skipped, 'sample')} that cannot be read"


def comparison_table(comparison: Comparison) -> Table:
    """Return the table of `gpupipe compare`."""
    to = comparison.baseline.side.name if comparison.baseline else ""
    table = new_table("; ".join(comparison.notes), *speed_columns(comparison, f"times {to}"))
    for row in speed_rows(comparison):
        table.add_row(*row)
    return table


def speed_columns(comparison: Comparison, ratio: str) -> list[str]:
    """Return the column heads of `speed_rows`; `ratio` heads the ratios to the baseline."""
    busy = ["GPU busy"] if _gpu_busy(comparison.measured) else []
    return ["", "images/s", ratio, "first batch", "CPU s / 1,000", "peak memory", *busy]


def speed_rows(comparison: Comparison) -> Iterable[list[str]]:
    """Yield one row per side: mean rate, ratio to the baseline, and medians of the rest."""
    for r in comparison.measured:
        spread = f" ± {r.deviation:,.0f}" if r.deviation is not None else ""
        to_baseline = comparison.ratio(r)
        times = "1" if to_baseline is None else _times(to_baseline)
        first, cpu = (
            r.median(lambda o: o.first_batch_seconds),
            r.median(lambda o: 1000 * o.cpu_seconds / o.images),
        )
        memory = r.median(lambda o: o.peak_memory) / 2**20
        busy = [_percent(_gpu_busy([r]))] if _gpu_busy(comparison.measured) else []
        yield [
            r.side.name,
            f"{r.mean:,.0f}{spread}",
            times,
            f"{first:.2f} s",
            f"{cpu:.2f}",
            f"{memory:,.0f} MiB",
            *busy,
        ]


def _times(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    is_unknown = ratio.is_vague and not ratio.is_certain
    times = "cannot be determined" if is_unknown else f"{ratio.value:.2f}"
    return f"{times} ({format_interval(ratio)})"


def _gpu_busy(results: Iterable[Result]) -> list[float]:
    return [o.gpu_utilisation for r in results for o in r.outcomes if o.gpu_utilisation is not None]


def _percent(shares: list[float]) -> str:
    return f"{sum(shares) / len(shares):.0%}" if shares else "-"


def parity_table(agreements: Sequence[Agreement], engine: str) -> Table:
    """Return the table of `gpupipe parity`; `engine` is the title of the compared engine."""
    images = min((a.images for a in agreements), default=0)
    table = new_table(
        f"{engine} against torchvision, in levels of 255, over {counted(images, 'image')}",
        *parity_columns(engine),
    )
    for a, (*cells, verdict) in zip(agreements, parity_rows(agreements), strict=True):
        table.add_row(*cells, f"[{'green' if a.holds else 'bold red'}]{verdict}[/]")
    return table


def parity_columns(engine: str) -> tuple[str, ...]:
    """Return the titles of the columns for an engine of this title."""
    return ("up to", f"{engine} on", "mean", "largest", "PSNR", "limit", "result")


def parity_rows(agreements: Iterable[Agreement]) -> Iterable[list[str]]:
    """Yield one row per agreement, in the order of parity_columns."""
    for a in agreements:
        limit = f"{'largest' if a.largest else 'mean'} ≤ {a.limit:g}"
        psnr = "identical" if a.most == 0 else f"{a.psnr:.1f} dB"
        yield [
            a.step,
            a.device,
            f"{a.mean:.3f}",
            f"{a.most:.1f}",
            psnr,
            limit,
            "holds" if a.holds else "FAILS",
        ]


def steps_table(pipeline: Pipeline) -> Table:
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


def batch_table(stage: BatchStage) -> Table:
    """Return the table of the steps on whole batches, with the fields that each works on."""
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
    return (
        "("
        + ", ".join(
            "?" if n is None else str(n)
            for n in ((spec.height, spec.width, spec.channels) if image else spec.shape)
        )
        + ")"
    )


def _parameters(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={_short(v)}" for k, v in values.items() if v is not None)


def _short(value: Any) -> str:
    return (
        "[" + ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value) + "]"
        if isinstance(value, tuple)
        else str(value)
    )


def lowering_table(device: str, operators: Iterable[tuple[str, str, tuple[str, ...]]]) -> Table:
    """Return the table of operators, with the steps that each implements: several if fused."""
    table = new_table(f"on the {device}", "operator", "device", "does the work of")
    for op, op_device, names in operators:
        table.add_row(
            op,
            op_device,
            " + ".join(names) or ("reading" if op.startswith(("io.", "torch.")) else "layout"),
        )
    return table


def findings_table(rows: Iterable[Any]) -> Table:
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
