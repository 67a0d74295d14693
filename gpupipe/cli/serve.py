"""gpupipe serve, status and keys."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpupipe.cli.arguments import config_argument, overrides_argument

if TYPE_CHECKING:
    from gpupipe.config import Config

_SHOW_SECONDS, _LOG_SECONDS = 1.0, 10.0
_DEFAULT_WIDTH = 80
"""Columns of a terminal that does not say how wide it is."""
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@config_argument
@overrides_argument
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; any but this machine's own needs --keys.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5557,
    show_default=True,
    help="0: any that is free.",
)
@click.option("--ipc", type=_FILE, help="Listen on this socket file in place of a port.")
@click.option(
    "--hwm",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Batches sent ahead to a client.",
)
@click.option(
    "--mode",
    type=click.Choice(["share", "broadcast"]),
    default="share",
    show_default=True,
    help="Each batch to one client, or to all.",
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    help="Ranks to deal out to in equal steps, as DDP needs it.",
)
@click.option(
    "--max-clients", type=click.IntRange(1), default=64, show_default=True, help="Clients at once."
)
@click.option(
    "--state",
    type=_FILE,
    help="Where to keep what a server goes on from after a crash.  [default: in the cache folder]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on where the last server was stopped, and keep the place when all clients are gone.",
)
@click.option("--fresh", is_flag=True, help="Begin with the first epoch, also after a crash.")
@click.option(
    "--compress",
    type=click.Choice(["none", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Of what goes over a socket.",
)
@click.option(
    "--ship",
    type=click.Choice(["batch", "uint8"]),
    default="batch",
    show_default=True,
    help="uint8: clients do to_dtype and normalize.",
)
@click.option(
    "--wire",
    type=click.Choice(["gpupipe", "fuel"]),
    default="gpupipe",
    show_default=True,
    help="fuel: for Fuel's original ServerDataStream.",
)
@click.option("--keys", type=_FILE, help="This server's secret key (gpupipe keys new).")
@click.option(
    "--allow", type=_FOLDER, help="Folder of the public keys of the clients that may connect."
)
@click.option(
    "--heartbeat-timeout",
    type=float,
    default=10.0,
    show_default=True,
    help="Seconds of silence after which a client's prefetched batches go to others.",
)
@click.option(
    "--session-timeout",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds of silence after which a client's session ends.",
)
@click.option(
    "--metrics", type=click.IntRange(1, 65535), help="Port for Prometheus, on this machine."
)
@click.option("--quiet", "-q", is_flag=True, help="Print only the address.")
def serve(config: str, overrides: tuple[str, ...], quiet: bool, **given: Any) -> None:
    """Serve the batches of CONFIG to training processes, which get them with gpupipe.connect() or
    engine=remote.
    """
    from gpupipe import config as configs
    from gpupipe.cli.console import Screen, print_data_warning
    from gpupipe.loader import open_loader
    from gpupipe.protocol.keys import import_zmq
    from gpupipe.server import start

    import_zmq()
    checked = configs.read(config, overrides)
    options = _options(checked, given)
    with Screen(quiet) as screen:
        loader = open_loader(checked, screen.progress)
    print_data_warning(loader.index)
    quiet = quiet or options.wire == "fuel"  # that server has no statistics
    servers: list[Any] = []

    def announce(server: Any) -> None:
        servers.append(server)
        _announce(server, quiet)

    try:
        start.run(loader, options, announce, _ticker(quiet))
    finally:
        if sys.stderr.isatty() and not quiet:
            click.echo(err=True)  # end the line that the ticker overwrites
    if options.state is not None and not quiet:
        _say_where_it_stopped(servers[0])


def _options(checked: Config, given: dict[str, Any]) -> Any:
    from gpupipe.server.options import parse_options

    host, port, ipc = given.pop("host"), given.pop("port"), given.pop("ipc")
    given["allowed"] = given.pop("allow")
    given["address"] = f"ipc://{ipc}" if ipc else f"tcp://{host}:{port}"
    if given["state"] is None and given["wire"] == "gpupipe" and port != 0:
        given["state"] = _state_file(checked, given)
    return parse_options(given)


def _state_file(checked: Config, given: dict[str, Any]) -> Path:
    """Return the default state file, one per combination of work and address."""
    from gpupipe.runtime.cache_dir import cache_dir

    what = [
        checked.source.model_dump_json(),
        checked.pipeline.fingerprint,
        checked.loader.model_dump_json(),
        given["mode"],
        given["clients"],
        given["address"],
        *([checked.batch.fingerprint] if checked.batch.entries else []),
    ]
    return (
        cache_dir()
        / "server"
        / f"{hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()}.state"
    )


def _announce(server: Any, quiet: bool) -> None:
    click.echo(server.address)
    if not quiet and server.options.state is not None:
        if server.has_resumed:
            for position in _progress(server):
                click.echo(
                    f"going on with {position} (--fresh begins with the first epoch)", err=True
                )
        elif server.options.resume:
            click.echo(
                f"no server has kept its state in {server.options.state}: beginning with "
                "the first epoch",
                err=True,
            )
    sys.stdout.flush()


def _progress(server: Any) -> list[str]:
    """Return the progress of each rank."""
    from gpupipe.errors import counted

    return [
        f"epoch {partition['epoch']} of rank {partition['rank']}: {partition['done']:,} of "
        f"{counted(partition['steps'], 'batch', 'batches')} done"
        for partition in server.stats()["partitions"]
    ]


def _say_where_it_stopped(server: Any) -> None:
    for position in _progress(server):
        click.echo(
            f"stopped in {position}; --resume goes on there, without it only the clients that are "
            "still running do",
            err=True,
        )


def _ticker(quiet: bool) -> Any:
    from gpupipe.server.metrics import Ticker

    if quiet:
        return lambda server: None
    if sys.stderr.isatty():
        return Ticker(_show_in_place, _SHOW_SECONDS)
    return Ticker(lambda text: click.echo(text, err=True), _LOG_SECONDS)


def _show_in_place(text: str) -> None:
    """Overwrite the previous line; a text longer than the terminal is wide ends in "..."."""
    from gpupipe.errors import short

    width = os.get_terminal_size(sys.stderr.fileno()).columns or _DEFAULT_WIDTH
    click.echo(f"\r\x1b[K{short(text, width - 1)}", err=True, nl=False)


@click.command()
@click.argument("address")
@click.option("--key", type=_FILE, help="Your secret key, for a server that has keys.")
@click.option("--server-key", type=_FILE, help="The server's public key.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
@click.option(
    "--patience",
    type=click.FloatRange(0.01),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the answer.",
)
def status(
    address: str, key: Path | None, server_key: Path | None, as_json: bool, patience: float
) -> None:
    """Ask the server at ADDRESS (tcp://HOST:PORT) how it goes. ADDRESS ray: show the trainers with
    engine ray that share this cache folder, and their workers.
    """
    import json

    if address == "ray":
        _print_ray_status(as_json)
        return
    from gpupipe.protocol.keys import import_zmq

    import_zmq()
    from gpupipe.server import metrics

    stats = metrics.fetch_stats(address, key, server_key, patience)
    click.echo(json.dumps(stats, indent=2) if as_json else "\n".join(metrics.format_table(stats)))


def _print_ray_status(as_json: bool) -> None:
    import json

    from gpupipe.engines.ray.trainer_status import format_statuses, read_statuses
    from gpupipe.runtime.cache_dir import cache_dir

    statuses = read_statuses()
    if as_json:
        click.echo(json.dumps(statuses, indent=2))
        return
    if not statuses:
        click.echo(
            f"no trainer with engine ray has its cache folder at {cache_dir()}: set GPUPIPE_CACHE "
            "as the trainer has it"
        )
    for line in format_statuses(statuses):
        click.echo(line)


@click.group()
def keys() -> None:
    """Keys for servers and clients on different machines."""


@keys.command()
@click.argument("name")
@click.option(
    "--folder", type=_FOLDER, default=Path("keys"), show_default=True, help="Where to put them."
)
def new(name: str, folder: Path) -> None:
    """Make NAME.key, which others may know, and NAME.key_secret, which stays where it is."""
    from gpupipe.protocol import keys as key_files

    public, secret = key_files.new(folder, name)
    click.echo(f"{public}\n{secret}")
