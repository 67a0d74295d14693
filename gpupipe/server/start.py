"""Starts a server in this process, which blocks until the server stops, or in a child process.

The child runs this file, and reads the config and the server's options from standard input.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpupipe import config as configs
from gpupipe.config import Config
from gpupipe.errors import ServerError
from gpupipe.loader import Loader, open_loader
from gpupipe.protocol.peers import import_zmq
from gpupipe.runtime.process import ChildProcess
from gpupipe.server.options import ServerOptions, parse_options

Served = Loader | Config | str | Path | Mapping[str, Any]
_STOP = b"stop\n"
"""The line that ServerProcess.close() writes to the child's standard input. If the input ends
without it, the parent process has died.
"""


def start_server(
    served: Served, port: int = 5557, hwm: int = 10, host: str = "127.0.0.1", **options: Any
) -> "ServerProcess | None":
    """Serve batches to other processes, which receive them with gpupipe.connect().

    Args:
        served: A Loader, or a config as for gpupipe.load(). A Loader is served in this process: the
            call blocks until Ctrl-C or SIGTERM, as Fuel's start_server does. A config is served by
            a new process, which ends with this process at the latest.
        port: TCP port to listen on; 0 for any free port.
        hwm: Number of batches that a client may hold, 1 to 1000.
        host: Address of the network interface to listen on. Other machines can connect only if the
            server has keys.
        **options: Fields of gpupipe.server.options.ServerOptions.

    Returns:
        The new process, with its `address`. None for a Loader, after the server was interrupted.

    Raises:
        ConfigError: The config is wrong.
        ServerError: An option is wrong, or the server cannot start.
        GpupipeError: Loading fails.

    Examples:
        >>> with gpupipe.start_server("lfw", port=0) as server:
        ...     loader = gpupipe.connect(server.address)
    """
    import_zmq()
    chosen = parse_options({"address": f"tcp://{host}:{port}", "hwm": hwm} | options)
    if not isinstance(served, Loader):
        return ServerProcess(served, chosen)
    run(served, chosen)
    return None


def run(
    loader: Loader,
    options: ServerOptions,
    announce: Callable[[Any], None] = lambda server: None,
    each: Callable[[Any], None] = lambda server: None,
) -> Any:
    """Serve a loader until SIGINT, SIGTERM or server.stop(), and return the server.

    Args:
        loader: The loader to serve.
        options: How to serve.
        announce: Called with the server once it listens.
        each: Called with the server repeatedly while it runs.
    """
    from gpupipe.server.fuel import FuelServer
    from gpupipe.server.metrics import serve_metrics
    from gpupipe.server.service import Server

    with (
        (FuelServer if options.wire == "fuel" else Server)(loader, options) as server,
        serve_metrics(server, options.metrics),
    ):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: server.stop())
        announce(server)
        server.run(each)
    return server


class ServerProcess:
    """A server in a child process, which ends with this process at the latest.

    Use it as a context manager, or call close().

    Attributes:
        address: The address that the server listens on, for gpupipe.connect().
    """

    def __init__(
        self,
        config: Config | str | Path | Mapping[str, Any],
        options: ServerOptions | None = None,
        **changes: Any,
    ) -> None:
        """Start the server and wait until it listens.

        Args:
            config: Name, path or dict of a config, as for gpupipe.load(). A Config object is
                refused: it cannot be sent to another process.
            options: How to serve; by default on any free port of the loopback interface.
            **changes: Overrides of the config, as for gpupipe.load().

        Raises:
            ConfigError: The config is wrong.
            ServerError: The server does not start.
        """
        if isinstance(config, Config):
            raise ServerError(
                "a config that is checked already cannot be sent to another process: give "
                "its path, its name or a dict"
            )
        configs.read(config, **changes)
        chosen = asdict(options or ServerOptions(address="tcp://127.0.0.1:0"))
        request = configs.to_plain_types({"config": config, "changes": changes, "options": chosen})
        line = json.dumps(request, default=str).encode() + b"\n"
        # Ctrl-C in the terminal stops the server as it stops `gpupipe serve`.
        self._process = ChildProcess("-m", "gpupipe.server.start", request=line, own_session=False)
        first = self._process.read_line()
        answer = json.loads(first) if first.strip() else {}
        if "address" not in answer:
            why = answer.get("error") or f"it ended with status {self._process.wait()}"
            self.close()
            raise ServerError(f"the server did not start: {why}")
        self.address = str(answer["address"])

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def close(self) -> None:
        """Stop the server and wait for its process to end; kill it after 10 seconds. Idempotent."""
        self._process.write(_STOP)
        self._process.end()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_child() -> int:
    """Run the server in the process of a ServerProcess, and return the exit status.

    The first line of standard input is the request as JSON. The server stops when the input ends.
    """
    request = json.loads(sys.stdin.readline())
    announced: list[Any] = []

    def announce(server: Any) -> None:
        announced.append(server)
        print(json.dumps({"address": server.address}), flush=True)
        threading.Thread(target=_stop_at_end, args=(server,), daemon=True).start()

    try:
        import_zmq()
        run(
            open_loader(configs.read(request["config"], **request["changes"])),
            parse_options(request["options"]),
            announce,
        )
    except Exception as e:
        if announced:  # the parent reads only the first line, the address
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
    """Stop a server when standard input ends.

    This function reads the file descriptor, not `sys.stdin`. A DataLoader worker that is forked
    meanwhile closes `sys.stdin`, and would wait forever for the lock that the reading thread holds.
    """
    received = b""
    while chunk := os.read(0, 4096):
        received += chunk
    server.stop(received == _STOP)


if __name__ == "__main__":
    sys.exit(run_child())
