"""Helpers of the commands: progress bars, reading configs, consoles, the exit after Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from gpupipe.cli.printing import print_note, print_warning, say

if TYPE_CHECKING:
    from gpupipe.config import Config
    from gpupipe.dataset.index import Index
    from gpupipe.loader import Loader

_INTERRUPTED = 130
_UNLIMITED = 10**5


class Screen:
    """Shows progress on standard error: a bar if that is a terminal, else single lines."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.quiet = quiet
        self._console = Console(stderr=True, quiet=quiet)
        # Not Console.is_terminal: FORCE_COLOR makes that true for a file, which takes no bars.
        self._is_terminal = sys.stderr.isatty()
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
            disable=quiet or not self._is_terminal,
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
        if activity != self._announced and not self.quiet and not self._is_terminal:
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
            if activity and not self._is_terminal:
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
        say(line)
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
    from gpupipe import config as configs
    from gpupipe.loader import open_loader
    from gpupipe.loading.assembly import resolve

    checked = configs.read(name, overrides)
    if not here and not resolve(checked).reads_data:
        with open_loader(checked) as loader:
            return checked, loader.index
    if checked.pipeline.later or checked.batch.later:
        print_note("the numbers of schedules are those of epoch 0")
        checked = checked.at_epoch(0)
    with Screen(False) as screen:
        return checked, configs.build_index(checked, screen.progress)


def leave_out_decoded_cache(config: Config) -> Config:
    """Return a config without the decoded cache; a line on stderr reports the change.

    Commands that time each of the first steps need this: the cache would skip these steps.
    """
    if config.source.cache_decoded is None:
        return config
    print_note("data.cache_decoded is left out: every image is decoded")
    return config.without_decoded_cache()


def print_data_warning(index: Index) -> None:
    """Print the warning that load() would issue, for commands whose output does not show it."""
    if index.warning:
        print_warning(index.warning)


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
    """Return a console for tables: as wide as the terminal, or as COLUMNS; else without limit."""
    from rich.console import Console

    is_limited = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return Console(width=None if is_limited else _UNLIMITED)


@contextmanager
def exit_if_interrupt_is_lost() -> Iterator[None]:
    """Exit at once on Ctrl-C inside the block where a KeyboardInterrupt would be lost.

    It is lost in an import, since packages catch all exceptions of what they import. It is also
    lost in functions that Python calls itself, such as those that run after each fork: Python
    ignores their exceptions. It is raised everywhere else.
    """
    before, process = signal.getsignal(signal.SIGINT), os.getpid()
    if (
        before is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield  # the caller handles it, or ignores it
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process and any(_iter_imports(frame)):  # not in a forked child
            leave_interrupted()
        signal.default_int_handler(number, frame)

    def exit_or_report(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is not KeyboardInterrupt:
            report(ignored)
        elif os.getpid() == process:  # a forked child goes on until this process ends it
            leave_interrupted()

    report, sys.unraisablehook = sys.unraisablehook, exit_or_report
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = report


def _iter_imports(frame: FrameType | None) -> Iterator[bool]:
    """Yield, for a frame and all its callers, whether it belongs to Python's import system."""
    while frame is not None:
        yield frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back


def leave_interrupted() -> None:
    """Exit at once with code 130, without waiting for batches that are still being decoded.

    Child processes are killed first: they would outlive this process for a moment.
    """
    click.echo("interrupted", err=True)
    children = [child for child in _list_children() if not _is_tracker(child)]
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for child in children:
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


def _list_children() -> list[int]:
    """Return the ids of the child processes; [] on systems that do not list them in /proc."""
    children: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            children += map(int, path.read_text().split())
    return children


def _is_tracker(process: int) -> bool:
    """Return whether a process is multiprocessing's, which frees shared memory after this one."""
    with suppress(OSError):
        return b"resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def format_size(count: float) -> str:
    """Return a size in bytes with its unit: 1.5 GB."""
    from rich.filesize import decimal

    return decimal(round(count))
