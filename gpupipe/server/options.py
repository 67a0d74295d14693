"""How a server is run."""

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
    """How a server is run.

    address: what it listens on: tcp://HOST:PORT, port 0 for any that is free, or ipc://FILE. hwm:
    batches that a client may hold. mode: share (each batch goes to one client) or broadcast (to
    all). clients: ranks of `share` with equal steps, or None. state: the file that a server goes on
    from after a crash, or None. resume: go on also after a stop, and keep the place when all
    clients are gone; fresh: begin anew in any case. compress: none, lz4 or zstd, of what goes over
    a socket. ship: batch, or uint8 to leave the steps behind the last uint8 image to the clients.
    wire: gpupipe, or fuel for Fuel's own stream. keys: this server's secret key; allowed: the
    folder of the public keys of clients. silent, lost: seconds without a word from a client until
    its prefetched batches, and until all of its batches, go to others. metrics: a port for
    Prometheus, or None.
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
        """Raises ServerError where one is none, or they do not fit together."""
        for name, known in _CHOICES.items():
            if (given := getattr(self, name)) not in known:
                raise ServerError(f"{name} is {given!r}{did_you_mean(str(given), known)}")
        for name, most in _COUNTS.items():
            if (given := getattr(self, name)) is not None and not (
                type(given) is int and 1 <= given <= most
            ):
                raise ServerError(
                    f"{name} is {given!r}, but should be a whole number from 1 to {most:,}"
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
                f"{self.allowed} holds no public key (*{keys.PUBLIC}), so nobody could connect"
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
        """What the ledger goes by."""
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
        """What a state file must be of, so that it can be gone on from."""
        return fingerprints | {"mode": self.mode, "clients": self.clients}


def options_of(given: Mapping[str, Any]) -> ServerOptions:
    """Options by their names.

    Raises ServerError for a name that is none, and what Options.check() raises.
    """
    known = [f.name for f in fields(ServerOptions)]
    for name in given:
        if name not in known:
            raise ServerError(f"a server has no option '{name}'{did_you_mean(name, known)}")
    options = ServerOptions(**given)
    options.check()
    return options
