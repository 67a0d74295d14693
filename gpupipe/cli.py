"""The command line. Each command imports what it needs when it is called, so that --help is fast.

Exit codes: 0 ok, 1 failure, 2 usage (a wrong option, or a mistake in a config), 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gpupipe
from gpupipe.errors import ConfigError, GpupipeError

if TYPE_CHECKING:
    from gpupipe.bench.measure import Measurement
    from gpupipe.bench.parity import Agreement
    from gpupipe.loader import Loader

_INTERRUPTED = 130
_PIPED_WIDTH = 120


class _Group(click.Group):
    """Turns gpupipe's own errors into a message and an exit code: a user's mistake never shows a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as e:
            click.echo(f"gpupipe: {len(e.problems)} mistake{'s' * (len(e.problems) > 1)} in the configuration", err=True)
            click.echo(str(e), err=True)
            ctx.exit(2)
        except GpupipeError as e:
            click.echo(f"gpupipe: {e}", err=True)
            ctx.exit(1)
        except (KeyboardInterrupt, click.Abort):
            _leave_interrupted()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gpupipe.__version__, prog_name="gpupipe")
def main() -> None:
    """Image loading for PyTorch from one YAML file, on DALI's GPU and CPU back ends."""


@main.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, help="Epochs in a measured pass.")
@click.option("--batches", type=click.IntRange(1), help="Batches in a measured pass, in place of whole epochs.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Measured passes: what mean and deviation are taken over.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write everything measured to this file.")
@click.option("--show", type=click.Path(dir_okay=False, path_type=Path), help="Write the first batch, with labels, to this PNG.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the images per second.")
def run(
    config: str, overrides: tuple[str, ...], epochs: int, batches: int | None, repeats: int, json_path: Path | None, show: Path | None, quiet: bool
) -> None:
    """Load CONFIG (a file, or a shipped name such as lfw) as training would, and measure it.

    KEY=VALUE changes a setting: batch_size=64, device=cpu, data.root=/images, pipeline=imagenet_train.
    """
    from gpupipe import config as configs
    from gpupipe.bench import grid, tables

    checked = configs.read(config, overrides)
    with _Screen(quiet) as screen:
        loader, meter = screen.start(checked, lambda loader, batch: grid.save(loader, batch, show) if show else None)
        count = batches or epochs * len(loader)
        try:
            for n in range(repeats):
                meter.run(f"{n + 1}/{repeats}", count)
        except KeyboardInterrupt:
            meter.result.interrupted = True
        result = meter.finish()
    _write_json(json_path, loader, result)
    if quiet and result.passes:
        click.echo(f"{result.mean_rate:.1f}")
    elif not quiet:
        _console().print(tables.measured(loader, result))
        _say_skipped(loader, result)
    if result.interrupted:
        _leave_interrupted()
    loader.close()


@main.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def check(config: str, overrides: tuple[str, ...]) -> None:
    """Check CONFIG without reading a pixel, and print the plan: the steps, and how each device runs them."""
    from gpupipe import config as configs
    from gpupipe.bench import tables
    from gpupipe.loader import import_engine

    console = _console()
    checked = configs.read(config, overrides)
    console.print(tables.steps(checked.pipeline))
    engine = import_engine(checked.loader.engine)
    from gpupipe import examine

    for device, operators in examine.operators(checked, engine.name).items():
        console.print(tables.lowering(device, operators))
    for line in examine.facts(checked):
        console.print(line, highlight=False, soft_wrap=True)


@main.command()
@click.argument("config", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--cpu-workers", default="4", show_default=True, metavar="N[,N]...", help="Workers of the DataLoader; several to see how it scales.")
@click.option("--repeats", type=click.IntRange(1), help="Rounds.  [default: 5, with --quick 3]")
@click.option("--batches", type=click.IntRange(1), help="Batches that are timed in a round.  [default: 100, with --quick 15]")
@click.option("--cores", "core_count", type=click.IntRange(1), help="Cores that every side is held to.  [default: all]")
@click.option("--cold", is_flag=True, help="Drop the images from the page cache before each side's turn.")
@click.option("--quick", is_flag=True, help="Fewer batches and rounds: a first look.")
@click.option("--max-diff", type=click.FloatRange(0), help="As for 'gpupipe parity', which comes first.  [default: 0.5]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write everything measured to this file.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write results.json, plots and report.html to this folder.")
def compare(
    config: str | None, overrides: tuple[str, ...], cpu_workers: str, repeats: int | None, batches: int | None, core_count: int | None,
    cold: bool, quick: bool, max_diff: float | None, json_path: Path | None, out: Path | None,
) -> None:  # fmt: skip
    """Compare DALI on the GPU and the CPU with torch's DataLoader: same samples, same draws, same cores, with error bars.

    CONFIG is configs/lfw.yaml if there is one here, else the shipped lfw.
    """
    import json

    from gpupipe import config as configs
    from gpupipe.bench import compare as comparing
    from gpupipe.bench import tables
    from gpupipe.bench.contestant import Contest

    if config and "=" in config:
        config, overrides = None, (config, *overrides)
    config = config or ("configs/lfw.yaml" if Path("configs/lfw.yaml").exists() else "lfw")
    checked = configs.read(config, overrides)
    workers, cores = _worker_counts(cpu_workers), _core_numbers(core_count)
    if max(workers) > len(cores):
        click.echo(f"gpupipe: warning: {max(workers)} workers share {len(cores)} cores, and will take turns", err=True)
    if checked.source.absent():
        with _Screen(False) as screen:
            checked.source.index(screen.progress)
    index = checked.source.index()
    agreements = _agreements(checked, index, 32, max_diff) if _has_dali() else []
    found, notes = comparing.sides(checked, workers, _gpus(), _has_dali())
    comparison = comparing.Comparison([comparing.Result(side) for side in found], notes, cores)
    contest = Contest(config, overrides, {}, cores, batches or (15 if quick else 100), 3 if quick else 10, cold)
    with _Screen(False) as screen:
        comparing.run(comparison, contest, repeats or (3 if quick else 5), screen.count)
    if json_path:
        json_path.write_text(json.dumps(comparison.as_json(), indent=2) + "\n", encoding="utf-8")
    _console().print(tables.compared(comparison))
    for sentence in comparing.verdict(comparison):
        click.echo(sentence)
    if out and comparison.measured:
        from gpupipe.bench import report

        click.echo(f"report: {report.write(out, comparison, agreements, checked, index, _dali_devices() if agreements else [])}")
    if comparison.interrupted:
        _leave_interrupted()
    if not all(a.holds for a in agreements):
        sys.exit(1)


def _worker_counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 0:
        raise click.BadParameter(f"{text!r} is not a number, or numbers with commas between them, such as 0,1,2,4", param_hint="--cpu-workers")
    return list(dict.fromkeys(counts))


def _core_numbers(count: int | None) -> tuple[int, ...]:
    """The first cores of those that this process may use."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if count is not None and count > len(allowed):
        raise click.BadParameter(f"{count}, but this process may use {len(allowed)}", param_hint="--cores")
    return tuple(allowed[:count])


def _gpus() -> int:
    from gpupipe.devices import gpu_count

    return gpu_count()


def _has_dali() -> bool:
    from importlib.util import find_spec

    return find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


@main.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--samples", type=click.IntRange(1), default=32, show_default=True, help="Images, spread over the set.")
@click.option("--max-diff", type=click.FloatRange(0), help="Limit of the mean difference, in levels, behind steps that interpolate.  [default: 0.5]")
def parity(config: str, overrides: tuple[str, ...], samples: int, max_diff: float | None) -> None:
    """Check that DALI and torchvision make the same pixels of CONFIG's images under the same draws, step by step."""
    from gpupipe import config as configs

    checked = configs.read(config, overrides)
    with _Screen(False) as screen:
        index = checked.source.index(screen.progress)
    if not all(a.holds for a in _agreements(checked, index, samples, max_diff)):
        sys.exit(1)


def _dali_devices() -> list[str]:
    return ["cpu", *(["gpu:0"] if _gpus() else [])]


def _agreements(checked: Any, index: Any, samples: int, max_diff: float | None) -> list[Agreement]:
    """Measure parity, and print it."""
    from gpupipe.bench import parity as agreement
    from gpupipe.bench import tables
    from gpupipe.loader import import_engine

    import_engine("dali")
    found = list(agreement.measure(checked, index, _dali_devices(), samples, max_diff))
    _console().print(tables.agreements(found))
    failed = next((a for a in found if not a.holds), None)
    if failed:
        click.echo(f"gpupipe: DALI on the {failed.device} and torchvision differ too much, from step '{failed.step}' on", err=True)
    left_out = [e.key for e in checked.pipeline.entries[len({a.step for a in found}) :]]
    if left_out:
        click.echo(f"not compared, for lack of a torch lowering: {', '.join(left_out)}")
    return found


@main.command()
def doctor() -> None:
    """Look at this machine: versions, GPU, decoder, cores, memory, limits; what is wrong, and what to do."""
    from gpupipe import doctor as examination
    from gpupipe.bench import tables

    findings = examination.examine()
    _console().print(tables.findings(findings))
    if any(f.status == "problem" for f in findings):
        sys.exit(1)


@main.command()
@click.argument("dataset")
@click.option("--root", type=click.Path(path_type=Path), help="Where to put it.  [default: where the shipped configs look for it]")
def fetch(dataset: str, root: Path | None) -> None:
    """Download DATASET (lfw), check it and unpack it."""
    from gpupipe import datasets

    try:
        known = datasets.DATASETS[datasets.known(dataset)]
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="DATASET") from None
    target = (root or datasets.default_root(dataset)).expanduser()
    if target.exists():
        click.echo(f"{target} is there already")
        return
    with _Screen(False) as screen:
        datasets.fetch(known, target, screen.progress)
    click.echo(f"{known.title}: {target}")


class _Screen:
    """Progress on the standard error stream, where that is a terminal; a piped run prints lines only."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.quiet = quiet
        self._console = Console(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=self._console, transient=True, refresh_per_second=4, disable=quiet or not self._console.is_terminal)
        self._task = self._progress.add_task("", total=None, rate="", visible=False)
        self._what = ""
        self._said = ""

    def __enter__(self) -> _Screen:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def start(self, checked: Any, look: Callable[[Loader, Any], None]) -> tuple[Loader, Any]:
        """The loader of a config, and a meter that has warmed it up."""
        from time import perf_counter

        from gpupipe.bench import tables
        from gpupipe.bench.measure import Meter
        from gpupipe.loader import import_engine, load

        import_engine(checked.loader.engine)
        if checked.source.absent():
            checked.source.index(self.progress)
        started = perf_counter()
        loader = load(checked, progress=self.progress)
        if not self.quiet:
            self._print(tables.headline(loader))
        return loader, Meter(loader, started, self.tick, look)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Preparing the data: a line when something new begins, and the bar."""
        if what != self._said and not self.quiet and not self._console.is_terminal:
            click.echo(what, err=True)
        self._said = what
        self._advance(what, done, total, f"{done:,}" if done else "")

    def count(self, what: str, done: int, total: int) -> None:
        """Something of which there are a few: a line for each where nobody watches the bar."""
        if what and not self._console.is_terminal:
            click.echo(what, err=True)
        self._advance("compare", done, total, what)

    def tick(self, name: str, images: int, total: int) -> None:
        """Measuring: the bar with the rate of the pass."""
        from time import perf_counter

        if self._what != name:
            self._since = (perf_counter(), images)
        seconds = perf_counter() - self._since[0]
        rate = f"{(images - self._since[1]) / seconds:,.0f} images/s" if seconds > 0.2 else ""
        self._advance(name, images, total, rate)

    def _advance(self, what: str, done: int, total: int | None, rate: str) -> None:
        if self._what != what:
            self._progress.reset(self._task, total=total, visible=True)
            self._what = what
        self._progress.update(self._task, description=what, completed=done, total=total, rate=rate)

    def _print(self, line: str) -> None:
        self._progress.stop()
        click.echo(line)
        self._progress.start()


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def _write_json(path: Path | None, loader: Loader, result: Measurement) -> None:
    import json

    if path:
        path.write_text(json.dumps(result.as_json(loader), indent=2) + "\n", encoding="utf-8")


def _say_skipped(loader: Loader, result: Measurement) -> None:
    if result.skipped:
        click.echo(f"{result.skipped:,} samples were skipped; each is listed with its reason in {loader.engine.quarantine_file}")


def _leave_interrupted() -> None:
    """End at once: waiting for what is still being decoded would only keep the user waiting."""
    click.echo("interrupted", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)
