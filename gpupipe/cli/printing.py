"""Prints lines for people to read: on a terminal, they break between words."""

import os
import sys
from typing import TextIO

import click

from gpupipe.runtime.text import wrap_words


def say(text: str, err: bool = False) -> None:
    """Print a text on stdout, or on stderr; a terminal gets no line that it would break itself."""
    width = get_width(sys.stderr if err else sys.stdout)
    click.echo("\n".join(wrap_words(text, width)) if width else text, err=err)


def print_error(text: str) -> None:
    """Print an error on stderr, with the prefix that all errors of the command line have."""
    say(f"error: {text}", err=True)


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    say(f"warning: {text}", err=True)


def print_note(text: str) -> None:
    """Print on stderr what a command does in another way than the config says."""
    say(f"note: {text}", err=True)


def announce(text: str) -> None:
    """Print a line on stderr if that is a terminal, before the imports that take seconds."""
    if sys.stderr.isatty():
        say(text, err=True)


def get_width(stream: TextIO) -> int:
    """Return the columns of the terminal that a stream is, and 0 if it is none or does not say."""
    if not stream.isatty():
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # it only acts like a terminal
        return 0
