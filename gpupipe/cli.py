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

    import_engine()
    from gpupipe import examine

    console = _console()
    checked = configs.read(config, overrides)
    console.print(tables.steps(checked.pipeline))
    for device, operators in examine.operators(checked).items():
        console.print(tables.lowering(device, operators))
    for line in examine.facts(checked):
        console.print(line, highlight=False, soft_wrap=True)


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

        import_engine()
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
