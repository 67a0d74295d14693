"""What the commands share: progress, tables, and how a command ends that was interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gpupipe.config import Config
    from gpupipe.dataset.index import Index
    from gpupipe.loader import Loader

_INTERRUPTED = 130
_PIPED_WIDTH = 120


class Screen:
    """Progress on the standard error stream, where that is a terminal; a piped run prints lines
    only.
    """

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
        self._what = ""
        self._said = ""

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def start(self, checked: Any, look: Callable[[Loader, Any], None]) -> tuple[Loader, Any]:
        """The loader of a config, and a meter that has warmed it up."""
        from time import perf_counter

        from gpupipe.bench import tables
        from gpupipe.bench.measure import Meter
        from gpupipe.loader import import_engine, quietly

        import_engine(checked.loader.engine)
        if checked.loader.engine != "remote" and checked.source.absent():
            checked.source.index(self.progress)
        started = perf_counter()
        loader = quietly(checked, self.progress)
        if self.quiet:
            say_stand_in(loader.index)
        else:
            self._print(tables.headline(loader))
        return loader, Meter(loader, started, self.tick, look)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Preparing the data: a line when something new begins, and the bar."""
        if what != self._said and not self.quiet and not self._console.is_terminal:
            click.echo(what, err=True)
        self._said = what
        self._advance(what, done, total, f"{done:,}" if done else "")

    def counter(self, name: str) -> Callable[[str, int, int], None]:
        """For something of which there are a few: a line for each where nobody watches the bar."""

        def count(what: str, done: int, total: int) -> None:
            if what and not self._console.is_terminal:
                click.echo(what, err=True)
            self._advance(name, done, total, what)

        return count

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


def read(name: str, overrides: tuple[str, ...], here: bool = False) -> tuple[Config, Index]:
    """The config, and its samples, which are a server's where there is one.

    here: those of this machine all the same. Raises what load() raises.
    """
    from gpupipe import config as configs
    from gpupipe.loader import quietly

    checked = configs.read(name, overrides)
    if checked.loader.engine == "remote" and not here:
        with quietly(checked) as loader:
            return checked, loader.index
    with Screen(False) as screen:
        return checked, checked.source.index(screen.progress)


def say_stand_in(index: Index) -> None:
    """What load() would warn of, for commands whose output does not show it."""
    if index.warning:
        click.echo(f"gpupipe: warning: {index.warning}", err=True)


def core_numbers(count: int | None) -> tuple[int, ...]:
    """The first cores of those that this process may use, all by default."""
    allowed = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    if count is not None and count > len(allowed):
        raise click.BadParameter(
            f"{count}, but this process may use {len(allowed)}", param_hint="--cores"
        )
    return tuple(allowed[:count])


def console() -> Any:
    """For tables: as wide as the terminal, and of a fixed width where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def leave_interrupted() -> None:
    """End at once: waiting for what is still being decoded would only keep the user waiting."""
    click.echo("interrupted", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)
