"""gpupipe cache list and empty: the caches of decoded images on this machine."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import click

from gpupipe.cli.arguments import AllAsJson, options
from gpupipe.cli.console import format_size
from gpupipe.errors import counted

if TYPE_CHECKING:
    from gpupipe.decoded_cache.location import CacheState

Where = Annotated[
    Literal["memory", "disk"] | None, "Only those in memory, or on disk.  [default: both]"
]


@click.command(name="list")
@options
def list_decoded(where: Where = None, as_json: AllAsJson = False) -> None:
    """Show the caches of decoded images on this machine (data.cache_decoded)."""
    from gpupipe.decoded_cache import location

    states = location.list_caches((where,) if where else location.PLACES)
    if as_json:
        click.echo(json.dumps([asdict(state) for state in states], indent=2))
        return
    if not states:
        click.echo("there are no caches of decoded images")
    for state in states:
        click.echo(state.path)
        for name, value in _decoded_lines(state):
            click.echo(f" {name:<12} {value}")


@click.command(name="empty")
@options
def empty_decoded(where: Where = None) -> None:
    """Remove the caches of decoded images on this machine (data.cache_decoded).

    Processes that use one go on with it; its memory is free when they end.
    """
    from gpupipe.decoded_cache import location

    states = location.empty_caches((where,) if where else location.PLACES)
    size = format_size(sum(state.used_bytes for state in states))
    in_use = sum(state.in_use for state in states)
    later = f"; {in_use} of them in use, and free when their processes end" if in_use else ""
    caches = counted(len(states), "cache of decoded images", "caches of decoded images")
    click.echo(f"{caches} removed, {size}{later}")


def _decoded_lines(state: "CacheState") -> list[tuple[str, str]]:
    size = f"{format_size(state.used_bytes)} of {format_size(state.max_bytes)} in {state.where}"
    if state.damaged:
        return [("size", size), ("damaged", f"{state.damaged}: the next loader replaces it")]
    share = "" if state.share is None else f", {state.share:.0%} of the data set are to be kept"
    return [
        ("data", state.root),
        ("steps", f"{state.steps} by engine {state.engine}"),
        ("size", size),
        ("images", f"{state.images:,}{share}"),
        ("in use", "by a running process" if state.in_use else "by no process"),
    ]
