"""The options of a server, and their validation.

The command line, start_server() and the server process all use `parse_options`. This file can be
imported without the packages of the extra `server`: start_server() names them if they are missing.
Every `gpupipe --help` imports this file, so it imports pydantic only when options are parsed. Its
annotations must not become strings: `_find_range` reads the limits from them.
"""

import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from gpupipe.errors import ServerError, did_you_mean

_COUNT = range(1, 1_000_001)


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server. Most have a help text for the command line, and some a range.

    Attributes:
        address: Address to listen on: tcp://HOST:PORT (port 0 for any free port) or ipc://FILE.
        hwm: Number of batches that a client may hold.
        mode: "share" sends each batch to one client, "broadcast" to every client.
        clients: Number of ranks for `share`, all with equally many steps; None to share freely.
        max_clients: Number of clients that may be connected at once.
        state: File that a server resumes from after a crash, or None for no such file.
        resume: Resume also after a stop, and keep the position while there are no clients.
        fresh: Start from the beginning, even after a crash.
        compress: Codec of batches that go over a socket.
        ship: "batch", or "uint8" to leave the steps after the last uint8 image to the clients.
        wire: "gpupipe", or "fuel" for Fuel's own protocol.
        keys: File of this server's secret key, or None for a server without keys.
        allowed: Folder with the public keys of the clients that may connect. Needed with `keys`.
        heartbeat_timeout: Seconds until a silent client's prefetched batches are requeued.
        session_timeout: Seconds until all batches of a silent client are requeued. More than
            `heartbeat_timeout`.
        metrics: Port for Prometheus, or None for no metrics.

    Raises:
        ServerError: A number is out of its range, or options contradict each other.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    address: str = "tcp://127.0.0.1:5557"
    hwm: Annotated[int, range(1, 1001), "Batches sent ahead to a client."] = 10
    mode: Annotated[Literal["share", "broadcast"], "Each batch to one client, or to all."] = "share"
    clients: Annotated[
        int | None, _COUNT, "Ranks to deal out to in equal steps, as DDP needs it."
    ] = None
    max_clients: Annotated[int, _COUNT, "Clients at once."] = 64
    state: Annotated[
        Path | None,
        "FILE",
        "Where to keep what a server goes on from after a crash.  [default: in the cache folder]",
    ] = None
    resume: Annotated[
        bool,
        "Go on where the last server was stopped, and keep the place when all clients are gone.",
    ] = False
    fresh: Annotated[bool, "Begin with the first epoch, also after a crash."] = False
    compress: Annotated[Literal["none", "lz4", "zstd"], "Compression of batches over a socket."] = (
        "none"
    )
    ship: Annotated[Literal["batch", "uint8"], "uint8: clients do to_dtype and normalize."] = (
        "batch"
    )
    wire: Annotated[Literal["gpupipe", "fuel"], "fuel: for Fuel's original ServerDataStream."] = (
        "gpupipe"
    )
    keys: Annotated[Path | None, "FILE", "This server's secret key (gpupipe keys new)."] = None
    allowed: Annotated[
        Path | None,
        "--allow",
        "DIRECTORY",
        "Folder of the public keys of the clients that may connect.",
    ] = None
    heartbeat_timeout: Annotated[
        float, "Seconds of silence after which a client's prefetched batches go to others."
    ] = 10.0
    session_timeout: Annotated[float, "Seconds of silence after which a client's session ends."] = (
        60.0
    )
    metrics: Annotated[int | None, range(1, 65536), "Port for Prometheus, on this machine."] = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, limits = getattr(self, field.name), _find_range(field)
            if limits is not None and value is not None and value not in limits:
                raise ServerError(_explain_range(field.name, value, limits))
        self._check_keys()
        if self.resume and self.fresh:
            raise ServerError(
                "resume goes on where the last server stopped, and fresh begins with the "
                "first epoch: give one of them"
            )
        if self.resume and self.state is None:
            raise ServerError(
                "resume needs the file that the last server kept its state in (--state)"
            )
        if self.mode == "broadcast" and self.clients is not None:
            raise ServerError(
                "broadcast sends everything to every client: it takes no number of clients"
            )
        if not 0 < self.heartbeat_timeout < self.session_timeout:
            raise ServerError(
                f"heartbeat_timeout is {self.heartbeat_timeout:g} s, but should be above 0 and "
                f"below session_timeout, which is {self.session_timeout:g} s"
            )
        if self.metrics is not None and self.wire == "fuel":
            raise ServerError(
                "Fuel's wire says nothing of its clients: metrics need --wire gpupipe"
            )
        if self.compress != "none":
            from gpupipe.protocol import batch_bytes

            batch_bytes.check_codec(self.compress)

    def _check_keys(self) -> None:
        from gpupipe.protocol import peers

        if not peers.is_loopback(self.address) and (self.keys is None or self.wire == "fuel"):
            advice = (
                "Fuel's wire knows no keys"
                if self.wire == "fuel"
                else "give it keys ('gpupipe keys new server', then --keys and --allow)"
            )
            raise ServerError(
                f"{self.address} can be reached from other machines: {advice}, or listen on "
                "127.0.0.1"
            )
        if (self.keys is None) != (self.allowed is None):
            raise ServerError(
                "a server with keys needs both its secret key (--keys) and the folder of "
                "the clients that it lets in (--allow)"
            )
        if self.allowed is not None and not any(self.allowed.glob("*" + peers.PUBLIC)):
            raise ServerError(
                f"{self.allowed} holds no public key (*{peers.PUBLIC}), so no client could connect"
            )


def parse_options(values: Mapping[str, Any]) -> ServerOptions:
    """Build options from a mapping of names to values.

    Raises:
        ServerError: A name is unknown, a value is invalid, or options contradict each other.
    """
    from pydantic import TypeAdapter, ValidationError

    text = json.dumps(dict(values), default=str)
    try:
        return TypeAdapter(ServerOptions).validate_json(text)
    except ValidationError as e:
        raise ServerError(_explain(e.errors()[0])) from None


def _explain(mistake: Mapping[str, Any]) -> str:
    """Return an error text from an error of pydantic: the option, its value, the allowed values."""
    name, value = str(mistake["loc"][0]), mistake["input"]
    by_name = {field.name: field for field in fields(ServerOptions)}
    if name not in by_name:
        return f"a server has no option '{name}'{did_you_mean(name, by_name)}"
    if mistake["type"] == "literal_error":
        names = get_args(get_args(by_name[name].type)[0])
        return f"{name} is {value!r}{did_you_mean(str(value), names)}"
    limits = _find_range(by_name[name])
    if limits is not None:
        return _explain_range(name, value, limits)
    return f"{name} is {value!r}: {mistake['msg']}"


def _find_range(field: Field[Any]) -> range | None:
    return next((part for part in get_args(field.type) if isinstance(part, range)), None)


def _explain_range(name: str, value: Any, limits: range) -> str:
    return (
        f"{name} is {value!r}, but should be a whole number from {limits.start} to "
        f"{limits.stop - 1:,}"
    )
