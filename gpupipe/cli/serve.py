"""The commands `gpupipe serve`, `gpupipe status` and `gpupipe keys`.

They serve batches to training processes, ask a server how it goes, and make its keys.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from gpupipe.cli.arguments import ConfigName, JsonFile, Overrides, options, options_of, write_json
from gpupipe.cli.console import Screen, print_data_warning
from gpupipe.cli.group import SubcommandGroup
from gpupipe.cli.printing import announce, say
from gpupipe.errors import counted, short
from gpupipe.server.options import ServerOptions, parse_options

if TYPE_CHECKING:
    from gpupipe.config import Config

_SHOW_SECONDS, _LOG_SECONDS = 1.0, 10.0
_DEFAULT_WIDTH = 80
"""The width in columns to assume if the terminal reports none."""


@click.command()
@options
@options_of(ServerOptions)
def serve(
    config: ConfigName,
    overrides: Overrides,
    host: Annotated[str, "Address to listen on; any but this machine's own needs --keys."] = (
        "127.0.0.1"
    ),
    port: Annotated[int, click.IntRange(0, 65535), "0: any that is free."] = 5557,
    ipc: Annotated[Path | None, "FILE", "Listen on this socket file in place of a port."] = None,
    quiet: Annotated[bool, "-q", "Print only the address."] = False,
    **values: Any,
) -> None:
    """Serve the batches of CONFIG to training processes, which get them with gpupipe.connect() or
    engine=remote.
    """
    if not quiet:
        announce(f"reading {config}")
    from gpupipe import config as configs
    from gpupipe.loader import open_loader
    from gpupipe.protocol.peers import import_zmq
    from gpupipe.server import start

    import_zmq()
    checked = configs.read(config, overrides)
    values["address"] = f"ipc://{ipc}" if ipc else f"tcp://{host}:{port}"
    if values["state"] is None and values["wire"] == "gpupipe" and port != 0:
        values["state"] = _state_file(checked, values)
    options = parse_options(values)
    with Screen(quiet) as screen:
        loader = open_loader(checked, screen.progress)
    print_data_warning(loader.index)
    quiet = quiet or options.wire == "fuel"  # that server has no statistics
    try:
        server = start.run(loader, options, lambda server: _announce(server, quiet), _ticker(quiet))
    finally:
        if sys.stderr.isatty() and not quiet:
            click.echo(err=True)  # end the line that the ticker overwrites
    if options.state is not None and not quiet:
        advice = "--resume goes on there, without it only the clients that are still running do"
        _print_progress(server, "stopped in", f"; {advice}")


def _state_file(checked: "Config", values: dict[str, Any]) -> Path:
    """Return the default state file, named by a hash of the config, mode, clients and address."""
    from gpupipe.runtime.files import cache_dir

    work = [
        checked.source.model_dump_json(),
        checked.pipeline.fingerprint,
        checked.loader.model_dump_json(),
        values["mode"],
        values["clients"],
        values["address"],
        *([checked.batch.fingerprint] if checked.batch.entries else []),
    ]
    name = hashlib.blake2b(repr(work).encode(), digest_size=8).hexdigest()
    return cache_dir() / "server" / f"{name}.state"


def _announce(server: Any, quiet: bool) -> None:
    click.echo(server.address)
    if not quiet and server.options.state is not None:
        if server.has_resumed:
            _print_progress(server, "going on with", " (--fresh begins with the first epoch)")
        elif server.options.resume:
            say(
                f"no server has kept its state in {server.options.state}: beginning with "
                "the first epoch",
                err=True,
            )
    sys.stdout.flush()


def _print_progress(server: Any, before: str, after: str) -> None:
    """Print a line for each rank: the text `before`, its epoch and progress, the text `after`."""
    for p in server.stats()["partitions"]:
        batches = f"{p['done']:,} of {counted(p['steps'], 'batch', 'batches')} done"
        say(f"{before} epoch {p['epoch']} of rank {p['rank']}: {batches}{after}", err=True)


def _ticker(quiet: bool) -> Any:
    from gpupipe.server.metrics import Ticker

    if quiet:
        return lambda server: None
    if sys.stderr.isatty():
        return Ticker(_show_in_place, _SHOW_SECONDS)
    return Ticker(lambda text: say(text, err=True), _LOG_SECONDS)


def _show_in_place(text: str) -> None:
    """Print a text over the previous line; cut it with "..." if the terminal is too narrow."""
    width = os.get_terminal_size(sys.stderr.fileno()).columns or _DEFAULT_WIDTH
    click.echo(f"\r\x1b[K{short(text, width - 1)}", err=True, nl=False)


@click.command()
@click.argument("address")
@options
def status(
    address: str,
    key: Annotated[Path | None, "FILE", "Your secret key, for a server that has keys."] = None,
    server_key: Annotated[Path | None, "FILE", "The server's public key."] = None,
    json_path: JsonFile = None,
    patience: Annotated[float, click.FloatRange(0.01), "Seconds to wait for the answer."] = 5.0,
) -> None:
    """Ask the server at ADDRESS (tcp://HOST:PORT) how it goes. If ADDRESS is ray, show the trainers
    with engine ray that share this cache folder, and their workers.
    """
    if address == "ray":
        _print_ray_status(json_path)
        return
    from gpupipe.protocol.peers import import_zmq

    import_zmq()
    announce(f"asking {address}")
    from gpupipe.server import metrics

    stats = metrics.fetch_stats(address, key, server_key, patience)
    click.echo("\n".join(metrics.format_table(stats)))
    write_json(json_path, stats)


def _print_ray_status(json_path: Path | None) -> None:
    from gpupipe.engines.ray.status import format_statuses, read_statuses
    from gpupipe.runtime.files import cache_dir

    statuses = read_statuses()
    if not statuses:
        say(
            f"no trainer with engine ray has its cache folder at {cache_dir()}: set GPUPIPE_CACHE "
            "as the trainer has it"
        )
    for line in format_statuses(statuses):
        say(line)
    write_json(json_path, statuses)


@click.group(cls=SubcommandGroup)
def keys() -> None:
    """Keys for servers and clients on different machines."""


@keys.command()
@click.argument("name")
@options
def new(name: str, out: Annotated[Path, "DIRECTORY", "Where to put them."] = Path("keys")) -> None:
    """Make NAME.key, which others may know, and NAME.key_secret, which stays where it is."""
    from gpupipe.protocol import peers

    public, secret = peers.create_keys(out, name)
    click.echo(f"{public}\n{secret}")
