"""Writes the report of a comparison: results.json, plots, and one self-contained HTML file."""

import base64
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpupipe.bench import pictures, plots, tables
from gpupipe.bench.comparison import Comparison, describe_verdict
from gpupipe.bench.parity import Agreement
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.engines import registry
from gpupipe.errors import counted

_SAMPLES = 4


def write(
    folder: Path,
    comparison: Comparison,
    agreements: Sequence[Agreement],
    config: Config,
    index: Index,
    devices: Sequence[str],
) -> Path:
    """Write report.html, results.json and the plots to `folder`; return the path of report.html.

    Args:
        folder: The folder, created if needed.
        comparison: The measured speeds.
        agreements: The measured parity of pixels; empty if parity was not measured.
        config: The config that was compared.
        index: Its samples.
        devices: The devices on which the compared engine's images are shown beside torchvision's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = comparison.as_json() | {
        "parity": [asdict(a) | {"holds": a.holds} for a in agreements]
    }
    (folder / "results.json").write_text(
        json.dumps(_finite(results), indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )
    drawn = {path.name: path.read_bytes() for path in plots.save(comparison, folder)}
    shown = list(pictures.draw_rows(config, index, devices, _SAMPLES)) if devices else []
    compared = registry.get_title(registry.find_preferred())
    rounds = max((len(r.outcomes) for r in comparison.measured), default=0)
    page = folder / "report.html"
    page.write_text(
        render_page(
            __package__,
            "report.html.j2",
            title=f"gpupipe compare: {config.name}",
            pipeline=_describe_pipeline(config),
            data=_describe_data(comparison.data),
            comparison=comparison,
            verdict=[sentence.replace(" %", "\xa0%") for sentence in describe_verdict(comparison)],
            parity_verdict=_describe_parity(agreements, config, compared),
            parity_holds=all(a.holds for a in agreements),
            speed_columns=tables.speed_columns(comparison, "ratio"),
            ratio_to=comparison.baseline.contestant.name if comparison.baseline else "",
            speed_rows=list(tables.speed_rows(comparison)),
            rounds=rounds,
            plots=[
                (alt, base64.b64encode(drawn[name]).decode())
                for name, alt in _iter_plots(comparison)
            ],
            compared=compared,
            parity_columns=tables.parity_columns(compared),
            parity_rows=list(tables.parity_rows(agreements)),
            devices=devices,
            shown=shown,
            shrunk=any(row.smaller > 1 for row in shown),
            shown_after=" + ".join(e.key for e in pictures.drawable_steps(config)),
            black_from=pictures.BLACK_FROM,
            measured_how=list(_iter_conditions(comparison, rounds)),
            machine=list(_iter_machine(results["machine"])),
        ),
        encoding="utf-8",
    )
    return page


def render_page(package: str, template: str, **values: Any) -> str:
    """Return a page of HTML.

    Args:
        package: The package that has the template, which extends `page.html.j2` of this one.
        template: The name of the template.
        **values: The values of its variables; `title` is the heading.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        loader=ChoiceLoader([PackageLoader(name, ".") for name in (package, "gpupipe.bench")]),
    )
    return environment.get_template(template).render(**values)


def _finite(value: Any) -> Any:
    """Replace infinities and NaN by None, since JSON cannot represent them.

    The PSNR of identical images is infinite, and so is the difference of images that differ in
    size.
    """
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe_pipeline(config: Config) -> str:
    steps = " + ".join(e.key for e in config.pipeline.entries)
    mixing = " + ".join(e.key for e in config.batch.entries)
    pipeline = f"pipeline {config.pipeline.name} ({steps})"
    return f"{pipeline}, batch {mixing}" if mixing else pipeline


def _describe_data(data: Mapping[str, Any]) -> str:
    return f"{counted(data['images'], 'image')}, batches of {data['batch_size']}" if data else ""


def _iter_plots(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield the file name and the alternative text of each plot."""
    named = [(r.contestant.name, r) for r in comparison.measured]
    times = "; ".join(f"{name}: {statistics.fmean(r.times):.3g} s" for name, r in named)
    yield "time.svg", f"Plot of seconds for 100 batches against workers of the DataLoader. {times}"
    rates = "; ".join(f"{name}: {r.mean:,.0f}" for name, r in named)
    yield "rate.svg", f"Bar plot of images a second. {rates}"


def _describe_parity(agreements: Sequence[Agreement], config: Config, engine: str) -> str:
    """Return the sentence about the parity of the engines; "" if parity was not measured."""
    if not agreements:
        return ""
    failed = next((a for a in agreements if not a.holds), None)
    if failed:
        return (
            f"They do not do the same work: {engine} on {failed.device} and torchvision differ "
            f"too much, from step '{failed.step}' on."
        )
    left_out = [e.key for e in config.pipeline.entries[len({a.step for a in agreements}) :]]
    rest = "; not compared, for lack of a torch lowering: " if left_out else ""
    return (
        f"They do the same work: after each step, the pixels of {engine} agree with those of "
        f"torchvision within the limits below{rest}{', '.join(left_out)}."
    )


_COLD = (
    "cold: dropped from the page cache before each turn; what a turn reads a second time "
    "comes from memory"
)
_WARM = "warm: whatever the page cache holds is used"


def _iter_conditions(comparison: Comparison, rounds: int) -> Iterator[tuple[str, str]]:
    """Yield name and description of each condition that is needed to repeat the measurement."""
    if comparison.command:
        yield "command", comparison.command
    yield "rounds", f"{rounds} of {comparison.repeats}" if comparison.interrupted else str(rounds)
    contest = comparison.contest
    timed = counted(contest.batches, "batch", "batches")
    yield "in each", f"{timed} timed, after the first and {contest.warm_up} more to warm up"
    yield "files", _COLD if contest.cold else _WARM
    yield "order", "the sides take turns, round after round, each time in a fresh process"
    if contest.cores:
        numbers = ", ".join(map(str, contest.cores))
        yield "cores", f"{len(contest.cores)}, the same for every side (numbers {numbers})"


def _iter_machine(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and description of each part of the machine."""
    yield "GPU", facts["gpu"] or "none"
    yield "processor", f"{facts['processor']}, {counted(facts['cores'], 'core')} usable"
    yield "memory", f"{facts['memory_gib']} GiB"
    yield "system", facts["system"]
    yield "Python", facts["python"]
    yield "packages", ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    yield "time", facts["time"]
