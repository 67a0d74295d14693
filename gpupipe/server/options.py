"""The options of a server, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpupipe.errors import ServerError, did_you_mean
from gpupipe.protocol import keys

if TYPE_CHECKING:
    from gpupipe.server.client_state import Rules


_CHOICES = {
    "mode": ("share", "broadcast"),
    "compress": ("none", "lz4", "zstd"),
    "ship": ("batch", "uint8"),
    "wire": ("gpupipe", "fuel"),
}
_COUNTS = {"hwm": 1000, "clients": 1_000_000, "most_clients": 1_000_000, "metrics": 65535}


@dataclass(frozen=True)
class ServerOptions:
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
        silent: Heartbeat timeout: seconds until a silent client's prefetched batches are requeued.
        lost: Session timeout: seconds until all batches of a silent client are requeued. More than
            `silent`.
        most_clients: Number of clients that may be connected at once.
        metrics: Port for Prometheus, or None for no metrics.

    """

    address: str = "tcp://127.0.0.1:5557"
    hwm: int = 10
    mode: Literal["share", "broadcast"] = "share"
    clients: int | None = None
    state: Path | None = None
    resume: bool = False
    fresh: bool = False
    compress: Literal["none", "lz4", "zstd"] = "none"
    ship: Literal["batch", "uint8"] = "batch"
    wire: Literal["gpupipe", "fuel"] = "gpupipe"
    keys: Path | None = None
    allowed: Path | None = None
    silent: float = 10.0
    lost: float = 60.0
    most_clients: int = 64
    metrics: int | None = None

    def check(self) -> None:
        """Raise ServerError if an option is invalid, or if options contradict each other."""
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ServerError(f"{name} is {value!r}{did_you_mean(str(value), choices)}")
        for name, most in _COUNTS.items():
            if (value := getattr(self, name)) is not None and not (
                type(value) is int and 1 <= value <= most
            ):
                raise ServerError(
                    f"{name} is {value!r}, but should be a whole number from 1 to {most:,}"
                )
        if not keys.is_loopback(self.address) and (self.keys is None or self.wire == "fuel"):
            no = (
                "Fuel's wire knows no keys"
                if self.wire == "fuel"
                else "give it keys ('gpupipe keys new server', then --keys and --allow)"
            )
            raise ServerError(
                f"{self.address} can be reached from other machines: {no}, or listen on 127.0.0.1"
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
        self._check_resume()
        if self.mode == "broadcast" and self.clients is not None:
            raise ServerError(
                "broadcast sends everything to every client: it takes no number of clients"
            )
        if not 0 < self.silent < self.lost:
            raise ServerError(
                "a client must count as silent before it counts as lost: silent is "
                f"{self.silent:g} s, lost {self.lost:g} s"
            )
        if self.metrics is not None and self.wire == "fuel":
            raise ServerError(
                "Fuel's wire says nothing of its clients: metrics need --wire gpupipe"
            )
        if self.compress != "none":
            from gpupipe.protocol import compression

            compression.check(self.compress)

    def _check_resume(self) -> None:
        if self.resume and self.fresh:
            raise ServerError(
                "resume goes on where the last server stopped, and fresh begins with the "
                "first epoch: give one of them"
            )
        if self.resume and self.state is None:
            raise ServerError(
                "resume needs the file that the last server kept its state in (--state)"
            )

    @property
    def rules(self) -> Rules:
        """The options that the leases need."""
        from gpupipe.server.client_state import Rules

        return Rules(
            self.mode,
            self.clients,
            self.hwm,
            self.silent,
            self.lost,
            self.most_clients,
            self.resume,
        )

    def what(self, fingerprints: dict[str, Any]) -> dict[str, Any]:
        """Return what identifies the served work: a state file must agree with it to be resumed."""
        return fingerprints | {"mode": self.mode, "clients": self.clients}


def options_of(given: Mapping[str, Any]) -> ServerOptions:
    """Build options from a mapping of names to values, and check them.

    Raises:
        ServerError: A name is unknown, or ServerOptions.check() fails.

    """
    names = [f.name for f in fields(ServerOptions)]
    for name in given:
        if name not in names:
            raise ServerError(f"a server has no option '{name}'{did_you_mean(name, names)}")
    options = ServerOptions(**given)
    options.check()
    return options
