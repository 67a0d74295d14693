"""Prints the mistakes of a configuration, each with its line of YAML and a caret below it."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpupipe.cli.printing import get_width, print_error
from gpupipe.errors import ConfigError, counted, hide_secrets
from gpupipe.runtime.text import wrap_words

_LINE_BREAK = re.compile("[\n\x85\u2028\u2029]")
"""The line breaks of YAML; Python has turned the others into the first."""
_INDENT = 4
_WIDTH = 100
"""How much of a long line is shown where no terminal says its width."""


def print_mistakes(error: ConfigError) -> None:
    """Print all mistakes on stderr: in colour on a terminal, or as NO_COLOR or FORCE_COLOR say."""
    is_forced = True if os.environ.get("FORCE_COLOR") else None
    color = False if os.environ.get("NO_COLOR") else is_forced
    print_error(f"{counted(len(error.problems), 'mistake')} in the configuration")
    width = get_width(sys.stderr)
    for problem in error.problems:
        text = str(problem)
        first, *others = wrap_words(text, width) if width else [text]
        if problem.where and first.startswith(problem.where):
            first = click.style(problem.where, bold=True) + first[len(problem.where) :]
        click.echo("\n".join([first, *others]), err=True, color=color)
        for line in _quote(problem.where, max(1, width - _INDENT) if width else _WIDTH):
            click.echo(" " * _INDENT + line, err=True, color=color)


def _quote(where: str, width: int) -> Iterator[str]:
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
    marked = hide_secrets(f"{line[: column - 1]}\0{line[column - 1 :]}")
    index = marked.find("\0" if "\0" in marked else "***")
    shown, before = _cut(marked.replace("\0", ""), index, width)
    if shown.strip():
        yield shown.rstrip()
        yield " " * before + click.style("^", fg="red", bold=True)


def _cut(line: str, index: int, width: int) -> tuple[str, int]:
    """Return the part of a line around an index, and the index in it; "…" marks what is cut."""
    if len(line) <= width:
        return line, index
    start = max(0, min(index - width * 3 // 5, len(line) - width))
    end = start + width
    shown = "…" * (start > 0) + line[start + (start > 0) : end - (end < len(line))]
    return shown + "…" * (end < len(line)), index - start
