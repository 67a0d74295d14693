"""The options of a server, and their validation.

The command line, start_server() and the server process all use `parse_options`. This file can be
imported without the packages of the extra `server`: start_server() names them if they are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import pydantic
from pydantic import ConfigDict, Field

from gpupipe.errors import ServerError, did_you_mean
from gpupipe.protocol import keys

if TYPE_CHECKING:
    from gpupipe.server.client_state import LeaseRules

Count = Annotated[int, Field(strict=True)]


class ServerOptions(pydantic.BaseModel):
    """The options of a server.

    Attributes:
        address: Address to listen on: tcp://HOST:PORT (port 0 for any free port) or ipc://FILE.
        hwm: Number of batches that a client may hold, 1 to 1000.
        mode: "share" sends each batch to one client, "broadcast" to every client.
        clients: Number of ranks for `share`, all with equally many steps; None to share freely.
        state: File that a server resumes from after a crash, or None for no such file.
        resume: Resume also after a stop, and keep the position while there are no clients.
        fresh: Start from the beginning, even after a crash.
        compress: Codec of batches that go over a socket: "none", "lz4" or "zstd".
        ship: "batch", or "uint8" to leave the steps after the last uint8 image to the clients.
        wire: "gpupipe", or "fuel" for Fuel's own protocol.
        keys: File of this server's secret key, or None for a server without keys.
        allowed: Folder with the public keys of the clients that may connect. Needed with `keys`.
        heartbeat_timeout: Seconds until a silent client's prefetched batches are requeued.
        session_timeout: Seconds until all batches of a silent client are requeued. More than
            `heartbeat_timeout`.
        max_clients: Number of clients that may be connected at once.
        metrics: Port for Prometheus, or None for no metrics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = "tcp://127.0.0.1:5557"
    hwm: Count = Field(10, ge=1, le=1000)
    mode: Literal["share", "broadcast"] = "share"
    clients: Count | None = Field(None, ge=1, le=1_000_000)
    state: Path | None = None
    resume: bool = False
    fresh: bool = False
    compress: Literal["none", "lz4", "zstd"] = "none"
    ship: Literal["batch", "uint8"] = "batch"
    wire: Literal["gpupipe", "fuel"] = "gpupipe"
    keys: Path | None = None
    allowed: Path | None = None
    heartbeat_timeout: float = Field(10.0, gt=0)
    session_timeout: float = Field(60.0, gt=0)
    max_clients: Count = Field(64, ge=1, le=1_000_000)
    metrics: Count | None = Field(None, ge=1, le=65535)

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> ServerOptions:
        """Raise ServerError, which pydantic passes on, if options contradict each other."""
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
        if self.heartbeat_timeout >= self.session_timeout:
            raise ServerError(
                f"heartbeat_timeout is {self.heartbeat_timeout:g} s, but should be below "
                f"session_timeout, which is {self.session_timeout:g} s"
            )
        if self.metrics is not None and self.wire == "fuel":
            raise ServerError(
                "Fuel's wire says nothing of its clients: metrics need --wire gpupipe"
            )
        if self.compress != "none":
            from gpupipe.protocol import compression

            compression.check(self.compress)
        return self

    def _check_keys(self) -> None:
        if not keys.is_loopback(self.address) and (self.keys is None or self.wire == "fuel"):
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
        if self.allowed is not None and not any(self.allowed.glob("*" + keys.PUBLIC)):
            raise ServerError(
                f"{self.allowed} holds no public key (*{keys.PUBLIC}), so no client could connect"
            )

    @property
    def rules(self) -> LeaseRules:
        """The options that the leases need."""
        from gpupipe.server.client_state import LeaseRules

        return LeaseRules(
            self.mode,
            self.clients,
            self.hwm,
            self.heartbeat_timeout,
            self.session_timeout,
            self.max_clients,
            self.resume,
        )

    def identify_work(self, fingerprints: dict[str, Any]) -> dict[str, Any]:
        """Return what identifies the served work: a state file must agree with it to be resumed."""
        return fingerprints | {"mode": self.mode, "clients": self.clients}


def parse_options(values: Mapping[str, Any]) -> ServerOptions:
    """Build options from a mapping of names to values.

    Raises:
        ServerError: A name is unknown, a value is invalid, or options contradict each other.
    """
    try:
        return ServerOptions.model_validate(dict(values))
    except pydantic.ValidationError as e:
        raise ServerError(_explain(e)) from None


def _explain(error: pydantic.ValidationError) -> str:
    """Return the first mistake: the option, its value, and what it should be."""
    mistake = error.errors()[0]
    name, value = str(mistake["loc"][0]), mistake["input"]
    fields = ServerOptions.model_fields
    if mistake["type"] == "extra_forbidden":
        return f"a server has no option '{name}'{did_you_mean(name, fields)}"
    if mistake["type"] == "literal_error":
        return f"{name} is {value!r}{did_you_mean(str(value), get_args(fields[name].annotation))}"
    limits = {
        key: number
        for limit in fields[name].metadata
        for key in ("ge", "gt", "le")
        if (number := getattr(limit, key, None)) is not None
    }
    if "le" in limits:
        return (
            f"{name} is {value!r}, but should be a whole number from {limits['ge']} to "
            f"{limits['le']:,}"
        )
    if "gt" in limits:
        return f"{name} is {value!r}, but should be a number of seconds above {limits['gt']}"
    return f"{name} is {value!r}: {mistake['msg']}"
