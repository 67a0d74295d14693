"""Helpers of the commands: progress bars, reading configs, consoles, the exit after Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from gpupipe.errors import GpupipeError

if TYPE_CHECKING:
    from gpupipe.config import Config
    from gpupipe.dataset.index import Index
    from gpupipe.loader import Loader

_INTERRUPTED = 130
_CHILD_SECONDS = 1.0
_PIPED_WIDTH = 120


class Screen:
    """Shows progress on standard error: a bar if that is a terminal, else single lines."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.quiet = quiet
        self._console = Console(stderr=True, quiet=quiet)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns,
            console=self._console,
            transient=True,
            refresh_per_second=4,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, rate="", visible=False)
        self._activity = ""
        self._announced = ""

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def start(self, checked: Any, look: Callable[[Loader, Any], None]) -> tuple[Loader, Any]:
        """Load a config; return the loader, and a Meter that has warmed it up.

        Args:
            checked: The config.
            look: Called with the loader and its first batch.
        """
        from gpupipe.bench import tables
        from gpupipe.bench.measure import Meter
        from gpupipe.config import build_index
        from gpupipe.loader import open_loader
        from gpupipe.loading.assembly import resolve

        if resolve(checked).reads_data and checked.source.explain_absence():
            build_index(checked, self.progress)
        started = perf_counter()
        loader = open_loader(checked, self.progress)
        if self.quiet:
            print_data_warning(loader.index)
        else:
            self._print(tables.headline(loader))
        return loader, Meter(loader, started, self.tick, look)

    def progress(self, activity: str, done: int, total: int | None) -> None:
        """Show how far an activity is; without a terminal, print its name when it begins."""
        if activity != self._announced and not self.quiet and not self._console.is_terminal:
            click.echo(activity, err=True)
        self._announced = activity
        self._advance(activity, done, total, f"{done:,}" if done else "")

    def counter(self, name: str) -> Callable[[str, int, int], None]:
        """Return a callback (task, done, total) that shows progress over a few long tasks.

        Without a terminal, the callback prints a line for each task instead.

        Args:
            name: The title of the progress bar.
        """

        def count(activity: str, done: int, total: int) -> None:
            if activity and not self._console.is_terminal:
                click.echo(activity, err=True)
            self._advance(name, done, total, activity)

        return count

    def tick(self, name: str, images: int, total: int) -> None:
        """Show how many of `total` images the measured pass `name` has loaded, and its rate."""
        if self._activity != name:
            self._since = (perf_counter(), images)
        seconds = perf_counter() - self._since[0]
        rate = f"{(images - self._since[1]) / seconds:,.0f} images/s" if seconds > 0.2 else ""
        self._advance(name, images, total, rate)

    def _advance(self, activity: str, done: int, total: int | None, rate: str) -> None:
        if self._activity != activity:
            self._progress.reset(self._task, total=total, visible=True)
            self._activity = activity
        self._progress.update(
            self._task, description=activity, completed=done, total=total, rate=rate
        )

    def _print(self, line: str) -> None:
        self._progress.stop()
        click.echo(line)
        self._progress.start()


def read(name: str, overrides: tuple[str, ...], here: bool = False) -> tuple[Config, Index]:
    """Read a config to measure, and the index of its samples. Raises the errors of load().

    Schedules keep their values of epoch 0, so that each epoch does the same work; a line on stderr
    reports that. If a server makes the batches, its schedules stay as they are.

    Args:
        name: The config's name or path.
        overrides: KEY=VALUE settings.
        here: Whether to read the index on this machine even if a server makes the batches.
    """
    checked = read_config(name, overrides)
    from gpupipe import config as configs
    from gpupipe.loader import open_loader
    from gpupipe.loading.assembly import resolve

    if not here and not resolve(checked).reads_data:
        with open_loader(checked) as loader:
            return checked, loader.index
    if checked.pipeline.later or checked.batch.later:
        click.echo("gpupipe: the numbers of schedules are those of epoch 0", err=True)
        checked = checked.at_epoch(0)
    with Screen(False) as screen:
        return checked, configs.build_index(checked, screen.progress)


def leave_out_decoded_cache(config: Config) -> Config:
    """Return a config without the decoded cache; a line on stderr reports the change.

    Commands that time each of the first steps need this: the cache would skip these steps.
    """
    if config.source.cache_decoded is None:
        return config
    click.echo("gpupipe: data.cache_decoded is left out: every image is decoded", err=True)
    return config.without_decoded_cache()


def print_data_warning(index: Index) -> None:
    """Print the warning that load() would issue, for commands whose output does not show it."""
    if index.warning:
        click.echo(f"gpupipe: warning: {index.warning}", err=True)


def core_numbers(count: int | None) -> tuple[int, ...]:
    """Return the numbers of the first `count` cores that this process may use; None means all.

    Raises click.BadParameter if the process may use fewer than `count`.
    """
    from gpupipe.runtime.ranks import allowed_cores

    allowed = allowed_cores()
    if count is not None and count > len(allowed):
        raise click.BadParameter(
            f"{count}, but this process may use {len(allowed)}", param_hint="--cores"
        )
    return tuple(allowed[:count])


def console() -> Any:
    """Return a console for tables: as wide as the terminal, or 120 columns without one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def read_config(name: str, overrides: tuple[str, ...]) -> Config:
    """Read a config, and import all that its loader needs; Ctrl-C ends the process meanwhile."""
    with exit_on_interrupt():
        from gpupipe import config as configs
        from gpupipe import loader  # noqa: F401  # imports torch
        from gpupipe.loading.assembly import resolve

        checked = configs.read(name, overrides)
        with suppress(GpupipeError):  # the command meets it again, where it tells it
            resolve(checked)
    return checked


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Exit at once on Ctrl-C inside the block, which only imports modules.

    A KeyboardInterrupt would be lost there: packages catch all exceptions of what they import.
    """
    before = signal.getsignal(signal.SIGINT)
    if (
        before is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield  # the caller handles it, or ignores it
        return
    signal.signal(signal.SIGINT, lambda number, frame: leave_interrupted())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def leave_interrupted() -> None:
    """Exit at once with code 130, without waiting for batches that are still being decoded.

    Worker processes are killed first: they would outlive this process for a moment.
    """
    click.echo("interrupted", err=True)
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()
            child.join(_CHILD_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


def format_size(count: float) -> str:
    """Return a size in bytes with its unit: 1.5 GB."""
    from rich.filesize import decimal

    return decimal(round(count))
