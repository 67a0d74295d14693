"""The group of all commands: the sections of its help, and errors as messages with exit codes."""

import io
import re
import shutil
from collections.abc import Iterable
from typing import Any, NoReturn

import click

from gpupipe.cli.console import exit_if_interrupt_is_lost, leave_interrupted
from gpupipe.cli.mistakes import print_mistakes
from gpupipe.cli.printing import print_error, say
from gpupipe.errors import ConfigError, GpupipeError, StepError

SECTIONS = {
    "Start": {
        "try": "photos",
        "init": "photos --out train.yaml",
        "run": "train.yaml batch_size=64",
        "fetch": "lfw",
    },
    "Look": {
        "check": "train.yaml",
        "inspect": "train.yaml --val val.yaml",
        "show-batch": "train.yaml",
        "gallery": 'random_affine "jpeg: {quality: [10, 30]}" --out pages',
        "list": "steps",
        "show": "random_affine",
    },
    "Measure": {
        "compare": "train.yaml --cpu-workers 2,4 --out report",
        "parity": "train.yaml",
        "profile": "train.yaml --step-ms 30",
        "tune": "train.yaml",
    },
    "Serve": {
        "serve": "train.yaml",
        "status": "tcp://localhost:5557",
        "keys": "new trainer",
    },
    "Maintain": {
        "convert": "train.yaml shards --max-side 500",
        "cache": "status remote.yaml",
        "doctor": "",
        "schema": "--install",
        "completion": "bash",
    },
}
"""The sections of --help, and of each command the arguments of its example."""


_MAX_WIDTH, _MIN_WIDTH = 78, 20
"""The columns of a help text, between which the terminal decides."""


class _HelpFormatter(click.HelpFormatter):
    """Breaks lines by the width of the terminal: click's own never goes below 50 columns."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        room = shutil.get_terminal_size().columns - 2
        super().__init__(indent_increment, width or max(_MIN_WIDTH, min(room, _MAX_WIDTH)))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        super().write_dl(rows, min(col_max, self.width * 2 // 5), col_spacing)

    def getvalue(self) -> str:
        return re.sub(" +\n", "\n", super().getvalue())


class _HelpContext(click.Context):
    formatter_class = _HelpFormatter


class SubcommandGroup(click.Group):
    """Writes whole summaries of its commands into its help."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            _write_summaries(formatter, sorted(self.commands.items()))


class CommandGroup(click.Group):
    """Turns gpupipe's errors into a message and an exit code; only a StepError has a traceback."""

    context_class = _HelpContext

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, examples in SECTIONS.items():
            with formatter.section(title):
                _write_summaries(formatter, [(name, self.commands[name]) for name in examples])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as e:
            _leave(ctx, e)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with exit_if_interrupt_is_lost():
                return super().invoke(ctx)
        except ConfigError as e:
            print_mistakes(e)
            ctx.exit(2)
        except GpupipeError as e:
            if isinstance(e, StepError):
                click.echo(e.traceback, err=True)
            print_error(str(e))
            ctx.exit(1)
        except click.NoSuchOption as e:
            _leave(ctx, _explain_option(e))
        except click.ClickException as e:
            _leave(ctx, e)
        except (KeyboardInterrupt, click.Abort):
            leave_interrupted()


def _leave(ctx: click.Context, error: click.ClickException) -> NoReturn:
    """Print click's own error with the prefix of all other errors, and exit with its code."""
    text = io.StringIO()
    error.show(text)
    say(text.getvalue().rstrip("\n").replace("Error: ", "error: ", 1), err=True)
    ctx.exit(error.exit_code)


def _write_summaries(
    formatter: click.HelpFormatter, commands: Iterable[tuple[str, click.Command]]
) -> None:
    """Write the name of each command beside the first sentence of its help, whole."""
    rows = [(name, command.get_short_help_str(limit=1000)) for name, command in commands]
    formatter.write_dl(rows)


def _explain_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option; if it is a setting, the error explains KEY=VALUE."""
    from gpupipe.config.loader_config import LoaderConfig

    name = error.option_name.lstrip("-").replace("-", "_")
    part = name.partition(".")[0]
    if part not in (*LoaderConfig.model_fields, "data", "pipeline", "loader"):
        return error
    rule = f"no option '{error.option_name}': a setting has no dashes"
    return click.UsageError(f"{rule}: write {name}=VALUE after the config", error.ctx)


def complete_help(group: click.Group) -> None:
    """Give the help of each command its example, and the width of the terminal."""
    for examples in SECTIONS.values():
        for name, arguments in examples.items():
            example = f"Example: gpupipe {name} {arguments}".rstrip()
            group.commands[name].epilog = f"\b\n{example}"  # one line, to copy
    _set_width(group)


def _set_width(group: click.Group) -> None:
    """Give the commands of a group, and of groups in it, the context that sets the help's width."""
    for command in group.commands.values():
        command.context_class = _HelpContext
        if isinstance(command, click.Group):
            _set_width(command)
