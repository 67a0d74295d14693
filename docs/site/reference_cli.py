"""Writes the page of every command and option, from click."""

from collections.abc import Iterator

import click

_ORDER = (
    *("try", "init", "check", "show-batch", "run", "list", "show", "gallery", "parity", "compare"),
    *("profile", "tune", "inspect", "convert", "doctor", "fetch", "cache", "serve", "keys"),
    "status",
)
"""The commands as a user comes to them. The others follow by name."""


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
    rank = {name: number for number, name in enumerate(_ORDER)}
    for name in sorted(group.commands, key=lambda name: (rank.get(name, len(rank)), name)):
        command = group.commands[name]
        if isinstance(command, click.Group):
            yield from _write_group(command, f"{path} {name}")
        else:
            yield _write_command(command, f"{path} {name}")


def _write_command(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    text = " ".join((command.help or "").split("\n\n", 1)[0].split())
    more = [" ".join(part.split()) for part in (command.help or "").split("\n\n")[1:]]
    options = [_write_option(p, context) for p in command.params]
    parts = [f"## {path}", text, f"```text\n{usage}\n```", *more, *options]
    return "\n\n".join(filter(None, parts)) + "\n"


def _write_option(parameter: click.Parameter, context: click.Context) -> str:
    """Return an option with its meaning; "" for an argument, which the usage shows."""
    if not isinstance(parameter, click.Option):
        return ""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    option, meaning = (" ".join(text.split()) for text in record)
    return f"`{option}`\n:   {meaning.replace('][', '; ')}"
