"""Starting a server: in this process, which it then occupies, or in one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from gpupipe import config as configs
from gpupipe.config import Config
from gpupipe.errors import ConfigError, ServerError
from gpupipe.loader import Loader, quietly
from gpupipe.protocol.keys import import_zmq
from gpupipe.server.options import ServerOptions, options_of

Served = Loader | Config | str | Path | Mapping[str, Any]
_STOP = "stop\n"
"""Sent by close(). Without it the end of the standard input means that the parent died."""


def start_server(
    served: Served, port: int = 5557, hwm: int = 10, host: str = "127.0.0.1", **options: Any
) -> ServerProcess | None:
    """Serve batches to other processes, which get them with gpupipe.connect().

    served: a Loader: this process serves what it makes, until it is interrupted (Ctrl-C, SIGTERM),
    as Fuel's start_server does. Or a config, as for gpupipe.load(): a fresh process serves it, and
    ends with this one at the latest; returns it, with its `address`. hwm: batches that a client may
    hold. options: those of gpupipe.server.options.Options. Raises ConfigError, ServerError, and
    what loading raises.
    """
    import_zmq()
    chosen = options_of({"address": f"tcp://{host}:{port}", "hwm": hwm} | options)
    if not isinstance(served, Loader):
        return ServerProcess(served, chosen)
    run(served, chosen)
    return None


def run(
    loader: Loader,
    options: ServerOptions,
    announce: Callable[[Any], None] = lambda server: None,
    each: Callable[[Any], None] = lambda server: None,
) -> None:
    """Serve until SIGINT, SIGTERM or server.stop().

    announce: gets the server when it listens; each: again and again while it runs.
    """
    from gpupipe.server.fuel import FuelServer
    from gpupipe.server.metrics import exposed
    from gpupipe.server.service import Server

    with (
        (FuelServer if options.wire == "fuel" else Server)(loader, options) as server,
        exposed(server, options.metrics),
    ):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: server.stop())
        announce(server)
        server.run(each)


class ServerProcess:
    """A server in a process of its own, which ends when this one does.

    Use it as a context manager, or call close().
    """

    def __init__(
        self,
        config: Config | str | Path | Mapping[str, Any],
        options: ServerOptions | None = None,
        **changes: Any,
    ) -> None:
        """changes: of the config, as for gpupipe.load(). Raises ConfigError, ServerError."""
        if isinstance(config, Config):
            raise ServerError(
                "a config that is checked already cannot be sent to another process: give "
                "its path, its name or a dict"
            )
        configs.read(config, **changes)
        given = {"config": configs.plain(config), "changes": configs.plain(changes)}
        given["options"] = asdict(options or ServerOptions(address="tcp://127.0.0.1:0"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpupipe.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(given, default=_plain) + "\n")
        self._process.stdin.flush()
        self.address = self._address()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _address(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said = (
            json.loads(line)
            if line.strip()
            else {"error": f"it ended with status {self._process.wait()}"}
        )
        if "address" in said:
            return str(said["address"])
        self.close()
        raise ServerError(f"the server did not start: {said['error']}")

    def close(self) -> None:
        """End it, and wait for that."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.write(_STOP)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _plain(value: Any) -> Any:
    """What JSON cannot say: paths, and mappings that are no dicts."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def child() -> int:
    """What the process of a ServerProcess does: its orders come over the standard input, whose end
    is its own.
    """
    given = json.loads(sys.stdin.readline())
    options = given["options"]
    for name in ("state", "keys", "allowed"):
        options[name] = Path(options[name]) if options[name] is not None else None

    announced: list[Any] = []

    def announce(server: Any) -> None:
        announced.append(server)
        print(json.dumps({"address": server.address}), flush=True)
        threading.Thread(target=_stop_at_end, args=(server,), daemon=True).start()

    try:
        import_zmq()
        run(
            quietly(configs.read(given["config"], **given["changes"])),
            ServerOptions(**options),
            announce,
        )
    except (ConfigError, ServerError, Exception) as e:
        if announced:  # the parent has read the address, and reads no more
            print(
                f"gpupipe: the server at {announced[0].address} ended: {e}",
                file=sys.stderr,
                flush=True,
            )
        else:
            print(json.dumps({"error": str(e)}), flush=True)
        return 1
    return 0


def _stop_at_end(server: Any) -> None:
    """Stop a server at the end of the standard input. It is read without `sys.stdin`: a worker of a
    DataLoader, which is forked meanwhile, closes that, and would wait for ever for the lock that
    its reader holds.
    """
    said = b""
    while more := os.read(0, 4096):
        said += more
    server.stop(said == _STOP.encode())
