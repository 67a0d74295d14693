"""The commands `gpupipe compare` and `gpupipe parity`.

`gpupipe compare` measures the speed of engines and of torch's DataLoader side by side. `gpupipe
parity` checks that an engine produces the same pixels as torchvision.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from gpupipe.cli.arguments import (
    ConfigName,
    JsonFile,
    OutputFolder,
    Overrides,
    options,
    options_of,
    write_all,
    write_json,
    writing,
)
from gpupipe.cli.catalog import complete_config
from gpupipe.cli.console import (
    Screen,
    console,
    core_numbers,
    leave_interrupted,
    print_data_warning,
    read,
)
from gpupipe.cli.printing import announce, print_error, print_warning, say
from gpupipe.errors import counted

if TYPE_CHECKING:
    from gpupipe.bench.comparison import Comparison, Contestant
    from gpupipe.bench.parity import Agreement
    from gpupipe.config import Config
    from gpupipe.dataset.index import Index

_SAMPLES = 32
_FROM_1 = click.IntRange(1)
RAY = "ray"
"""The engine that `--ray` adds."""


@dataclass(frozen=True)
class _Options:
    """The options of `gpupipe compare` that control the measurement."""

    cpu_workers: Annotated[
        str, "N[,N]...", "Workers of the DataLoader; several to see how it scales."
    ] = "4"
    repeats: Annotated[
        int | None, _FROM_1, "How often each side is measured.  [default: 5, with --quick 3]"
    ] = None
    batches: Annotated[
        int | None, _FROM_1, "Batches that are timed in a round.  [default: 100, with --quick 15]"
    ] = None
    core_count: Annotated[
        int | None, "--cores", _FROM_1, "Cores that every side is held to.  [default: all]"
    ] = None
    cold: Annotated[bool, "Drop the images from the page cache before each side's turn."] = False
    against: Annotated[
        str,
        "MODULE:FUNCTION",
        "Measure your own loader too: a function that returns a DataLoader, or any iterable of "
        "batches. It is in a module beside the config or on Python's path.",
    ] = ""
    ray: Annotated[bool, "Measure engine ray too, with workers on these cores."] = False
    quick: Annotated[bool, "Fewer batches and rounds: a first look."] = False
    max_diff: Annotated[
        float | None,
        click.FloatRange(0),
        "As for 'gpupipe parity', which comes first.  [default: 0.5 for each step that "
        "interpolates]",
    ] = None


@click.command()
@options
@options_of(_Options)
def compare(
    config: Annotated[
        str | None, click.argument("config", required=False, shell_complete=complete_config)
    ],
    overrides: Overrides,
    json_path: JsonFile = None,
    out: Annotated[
        Path | None, OutputFolder(), "Write results.json, plots and report.html to this folder."
    ] = None,
    **values: Any,
) -> None:
    """Compare DALI on the GPU and the CPU with the CPU engine and torch's DataLoader: same samples,
    same draws, same cores, with error bars.

    Without CONFIG, it takes configs/lfw.yaml if that file exists, else the shipped lfw.
    """
    if config is None or "=" in config:
        overrides = (config, *overrides) if config else overrides
        config = "configs/lfw.yaml" if Path("configs/lfw.yaml").exists() else "lfw"
    announce(f"reading {config}")
    from gpupipe.bench import compare as comparing
    from gpupipe.bench import tables
    from gpupipe.bench.comparison import describe_verdict
    from gpupipe.bench.contestant import Contest
    from gpupipe.engines import registry
    from gpupipe.runtime.devices import gpu_count
    from gpupipe.runtime.installation import require_extra

    chosen = _Options(**values)
    if out:
        require_extra("compare", ("matplotlib", "jinja2"), "the report of --out")
    if chosen.ray:
        registry.find(RAY)  # raises if Ray is not installed
    cores = core_numbers(chosen.core_count)
    few, warm_up, rounds = (15, 3, 3) if chosen.quick else (100, 10, 5)
    contest = Contest(config, overrides, {}, cores, chosen.batches or few, warm_up, chosen.cold)
    own = [_contestant_of(chosen.against)] if chosen.against else []
    for contestant in own:
        comparing.check_contestant(contestant, contest)
    checked, index = read(config, overrides, here=True)
    workers = _worker_counts(chosen.cpu_workers, len(cores))
    preferred, agreements = registry.find_preferred(), []
    if registry.is_installed(preferred):
        agreements = measure_parity(checked, index, _SAMPLES, chosen.max_diff, preferred)
    engines = comparing.comparable_engines(checked.loader.engine)
    if chosen.ray and RAY not in engines:
        engines = [*engines, RAY]
    contestants, notes = comparing.list_contestants(checked, workers, gpu_count(), engines)
    with Screen(False) as screen:
        comparison = comparing.compare(
            [*own, *contestants],
            contest,
            chosen.repeats or rounds,
            screen.counter("compare"),
            notes,
            shlex.join(["gpupipe", *sys.argv[1:]]),
        )
    if comparison.measured:
        console().print(tables.comparison_table(comparison))
        for sentence in describe_verdict(comparison):
            say(sentence)
        write_all(
            lambda: write_json(json_path, comparison.as_json()),
            lambda: _write_report(out, comparison, agreements, checked, index),
        )
    if comparison.interrupted:
        leave_interrupted()
    if not all(a.holds for a in agreements):
        sys.exit(1)


def _contestant_of(path: str) -> "Contestant":
    """Return the contestant that --against names; raise click.BadParameter for another text."""
    from gpupipe.bench.comparison import Contestant

    if not re.fullmatch(r"[\w.]+:[\w.]+", path):
        raise click.BadParameter(
            f"{path!r} should be MODULE:FUNCTION, such as my_data:make_loader",
            param_hint="--against",
        )
    return Contestant(path, {}, against=path)


@click.command()
@options
def parity(
    config: ConfigName,
    overrides: Overrides,
    samples: Annotated[int, _FROM_1, "Images, spread over the set."] = _SAMPLES,
    max_diff: Annotated[
        float | None,
        click.FloatRange(0),
        "Limit of the mean difference, in levels, after steps that interpolate.  [default: "
        "0.5 for each of them]",
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Check that CONFIG's engine and torchvision produce the same pixels from the same images with
    the same draws, step by step.
    """
    announce(f"reading {config}")
    checked, index = read(config, overrides, here=True)
    print_data_warning(index)
    engine = _parity_engine(checked)
    agreements = measure_parity(checked, index, samples, max_diff, engine)
    results = {
        "config": checked.name,
        "engine": engine,
        "agreements": [a.as_json() for a in agreements],
        "not_compared": _list_not_compared(checked, agreements),
    }
    write_json(json_path, results)
    if not all(a.holds for a in agreements):
        sys.exit(1)


def _list_not_compared(config: "Config", agreements: "list[Agreement]") -> list[str]:
    """Return the steps that were not compared: those from the first without a torch lowering on."""
    return [e.key for e in config.pipeline.entries[len({a.step for a in agreements}) :]]


def _parity_engine(config: "Config") -> str:
    """Return the engine to compare with torchvision: usually the engine of the config.

    If that is `auto`, the reference engine or a server, return the engine that `auto` prefers.
    """
    from gpupipe.engines import registry
    from gpupipe.loading.assembly import resolve
    from gpupipe.runtime.registry import AUTO

    own, reference = config.loader.engine, registry.find_reference().name
    is_other = own not in (AUTO, reference) and resolve(config).reads_data
    return own if is_other else registry.find_preferred()


def _write_report(
    folder: Path | None,
    comparison: "Comparison",
    agreements: "list[Agreement]",
    checked: "Config",
    index: "Index",
) -> None:
    """Write the report of --out to `folder`, unless it is None."""
    from gpupipe.bench import report
    from gpupipe.engines import registry

    if folder is None:
        return
    devices = _devices(registry.find_preferred()) if agreements else []
    with writing(folder):
        page = report.write(folder, comparison, agreements, checked, index, devices)
    say(f"report: {page}")


def measure_parity(
    checked: "Config", index: "Index", samples: int, max_diff: float | None, engine: str
) -> "list[Agreement]":
    """Compare the pixels of an engine with torchvision's; print and return the results."""
    from gpupipe.bench import parity as agreement
    from gpupipe.bench import tables
    from gpupipe.engines import registry

    registry.find(engine)
    title = registry.get_title(engine)
    agreements = list(
        agreement.measure(checked, index, _devices(engine), samples, max_diff, engine=engine)
    )
    console().print(tables.parity_table(agreements, title))
    for name in dict.fromkeys([engine, registry.find_reference().name]):
        counts = agreement.count_decoders(checked, index, samples, name)
        if counts:
            names = ", ".join(f"{count} by {decoder}" for decoder, count in counts.items())
            say(f"images that {registry.get_title(name)} decoded: {names}")
    failed = next((a for a in agreements if not a.holds), None)
    if failed:
        print_error(
            f"{title} on the {failed.device} and torchvision differ too much, from step "
            f"'{failed.step}' on"
        )
    if left_out := _list_not_compared(checked, agreements):
        say(f"not compared, for lack of a torch lowering: {', '.join(left_out)}")
    return agreements


def _worker_counts(text: str, cores: int) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 0:
        raise click.BadParameter(
            f"{text!r} is not a number, or numbers with commas between them, such as 0,1,2,4",
            param_hint="--cpu-workers",
        )
    if max(counts) > cores:
        print_warning(f"{max(counts)} workers share {counted(cores, 'core')}, and will take turns")
    return list(dict.fromkeys(counts))


def _devices(engine: str) -> list[str]:
    from gpupipe.engines import registry
    from gpupipe.runtime.devices import gpu_count

    has_gpu = gpu_count() and "gpu" in registry.find(engine).traits.backends
    return ["cpu", *(["gpu:0"] if has_gpu else [])]
