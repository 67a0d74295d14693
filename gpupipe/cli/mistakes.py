"""Prints the mistakes of a configuration, each with its line of YAML and a caret below it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

from gpupipe.cli.console import print_error
from gpupipe.errors import ConfigError, counted

_LINE_BREAK = re.compile("[\n\x85\u2028\u2029]")
"""The line breaks of YAML; Python has turned the others into the first."""
_WIDTH = 100
_BEFORE = 60
"""How much of a line that is longer than _WIDTH is shown before the caret."""


def print_mistakes(error: ConfigError) -> None:
    """Print all mistakes on stderr: in colour on a terminal, or as NO_COLOR or FORCE_COLOR say."""
    is_forced = True if os.environ.get("FORCE_COLOR") else None
    color = False if os.environ.get("NO_COLOR") else is_forced
    print_error(f"{counted(len(error.problems), 'mistake')} in the configuration")
    for problem in error.problems:
        where = f"{click.style(problem.where, bold=True)}: " if problem.where else ""
        click.echo(where + problem.what, err=True, color=color)
        for line in _quote(problem.where):
            click.echo(f"    {line}", err=True, color=color)


def _quote(where: str) -> Iterator[str]:
    """Yield the line at a location, "file:line:column", and a caret; nothing if there is none."""
    match = re.fullmatch(r"(.+):(\d+):(\d+)", where)
    if match is None:
        return
    path, number, column = Path(match[1]), int(match[2]), int(match[3])
    try:
        lines = _LINE_BREAK.split(path.read_text(encoding="utf-8")) if path.is_file() else []
    except (OSError, UnicodeDecodeError):
        return  # the message says what is wrong with the file
    if not 0 < number <= len(lines):
        return
    line = lines[number - 1].replace("\t", " ")
    start = max(0, column - 1 - _BEFORE) if len(line) > _WIDTH else 0
    shown = line[start : start + _WIDTH]
    if shown.strip():
        yield shown.rstrip()
        yield " " * (column - 1 - start) + click.style("^", fg="red", bold=True)
