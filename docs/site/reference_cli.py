"""Writes the page of every command and option, from click."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click


def write_page() -> str:
    """Return the page."""
    from gpupipe.cli.app import main

    intro = (
        "# Every command and option\n\n"
        "`gpupipe COMMAND --help` prints the same. [Commands](../commands.md) shows what they "
        "print. Exit codes: 0 is success, 1 a failure, 2 a wrong option or a mistake in a config, "
        "and 130 Ctrl-C.\n\n"
    )
    return intro + "\n".join(_write_group(main, "gpupipe"))


def _write_group(group: click.Group, path: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _write_group(command, f"{path} {name}")
        else:
            yield _write_command(command, f"{path} {name}")


def _write_command(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    text = " ".join((command.help or "").split("\n\n", 1)[0].split())
    more = [" ".join(part.split()) for part in (command.help or "").split("\n\n")[1:]]
    rows = [row for p in command.params if (row := _write_option(p, context))]
    table = ["| option | meaning |", "| --- | --- |", *rows] if rows else []
    parts = [f"## {path}", text, f"```text\n{usage}\n```", *more, "\n".join(table)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _write_option(parameter: click.Parameter, context: click.Context) -> str:
    record: Any = parameter.get_help_record(context)
    if record is None:
        return ""
    option, meaning = (" ".join(text.split()).replace("|", "\\|") for text in record)
    return f"| `{option}` | {meaning} |".replace("`--", "`--")
